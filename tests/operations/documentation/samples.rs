//! Samples: configuration that Keyward takes, JSON, and nothing that no test looks at.

use std::path::Path;

use keyward::config::Config;

use crate::documentation::markdown::{Block, Run, pages};

/// Folders that samples name; here, there is one with all files in it.
const FOLDERS: [&str; 2] = ["/etc/keyward/tls", "/run/secrets/keyward"];

/// All blocks in this language.
fn blocks(language: &str) -> Vec<Block> {
    let blocks = pages().into_iter().flat_map(|page| page.blocks());
    blocks.filter(|block| block.language == language).collect()
}

/// A folder with the files that samples name.
fn files() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    for (name, text) in [
        ("keyward.pem", &certificate),
        ("ca.pem", &certificate),
        ("clients.pem", &certificate),
        ("keyward.key", &key),
        ("username", &"keyward".to_owned()),
        ("password", &"secret".to_owned()),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn keyward_takes_every_sample_of_its_configuration() {
    let folder = files();
    let samples = blocks("yaml");
    assert!(samples.len() > 3);
    for Block { place, text, run, .. } in samples {
        assert_eq!(run, Run::ToItsEnd, "{place}");
        let folder = folder.path().to_str().unwrap();
        let mut text = FOLDERS.iter().fold(text, |text, known| text.replace(known, folder));
        // A sample of one section doesn't repeat what every file has.
        for required in ["upstream: mongodb://127.0.0.1:27017", "constraints: []"] {
            let (setting, _) = required.split_once(' ').unwrap();
            if !text.lines().any(|line| line.starts_with(setting)) {
                text = format!("{text}{required}\n");
            }
        }
        if let Err(problems) = Config::from_text(Path::new(&place), &text, None) {
            panic!("{place}: {problems}");
        }
    }
}

#[test]
fn json_is_json() {
    for Block { place, text, .. } in blocks("json") {
        for line in text.lines() {
            let value: Result<serde_json::Value, _> = serde_json::from_str(line);
            assert!(value.is_ok(), "{place}: {line}");
        }
    }
}

/// Commands (`sh`, `js`, and `text` for what they print) are tests/operations/chapters' and [`crate::documentation::commands`]'.
#[test]
fn every_block_is_looked_at_by_a_test() {
    for Block { place, language, .. } in pages().iter().flat_map(|page| page.blocks()) {
        let known = ["sh", "js", "text", "yaml", "json"].contains(&language.as_str());
        assert!(known, "{place}: no test looks at blocks of {language:?}");
    }
}
