//! Commands that aren't run: why not is said, and what can be checked is: their grammar, the options of `keyward` and `cargo`, the
//! names of tests, the files of this repository. So is what stands in running text.

use std::process::Command;

use crate::documentation::markdown::{Block, Run, pages, repository};

/// All commands that aren't run, each with the reason.
fn not_run() -> Vec<(Block, String)> {
    let mut blocks = Vec::new();
    for block in pages().iter().flat_map(|page| page.blocks()) {
        match &block.run {
            Run::Not(why) | Run::Stop(why) => {
                let why = why.clone();
                blocks.push((block, why));
            }
            Run::ToItsEnd | Run::Failing(_) | Run::Foreground => {}
        }
    }
    assert!(!blocks.is_empty());
    blocks
}

#[test]
fn the_reason_is_said_and_the_test_that_it_names_is_there() {
    for (block, why) in not_run() {
        assert_eq!(block.language, "sh", "{}: only commands", block.place);
        assert!(why.len() > 5, "{}: {why:?}", block.place);
        for word in why.split(' ').filter(|word| word.contains("tests/")) {
            assert!(repository().join(word).exists(), "{}: {word}", block.place);
        }
    }
}

#[test]
fn their_grammar_is_right() {
    for (block, _) in not_run() {
        let output = Command::new("bash").args(["-n", "-c", &block.text]).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && complaint.is_empty(),
            "{}: {complaint}",
            block.place
        );
    }
}

#[test]
fn what_they_name_is_there() {
    for (block, _) in not_run() {
        for line in block.text.lines() {
            check(&block.place, line);
        }
    }
}

#[test]
fn so_is_what_commands_in_running_text_name() {
    for page in pages() {
        let messages = page.code_in_first_columns();
        for code in page.code_spans().into_iter().filter(|code| !messages.contains(code)) {
            if ["keyward ", "cargo "].iter().any(|program| code.starts_with(program)) {
                check(&page.path, &code);
            }
        }
    }
}

/// Checks what can be checked of a command without running it.
fn check(place: &str, line: &str) {
    let (line, _) = line.split_once(" #").unwrap_or((line, ""));
    let mut words = line.split_whitespace().map(|word| word.trim_matches(['\'', '"', '`']));
    let repository = repository();
    for word in words.clone().filter(|word| word.starts_with("deploy/")) {
        assert!(repository.join(word).exists(), "{place}: {word}");
    }
    let Some(program) = words.find(|word| !word.contains('=')) else {
        return;
    };
    let words: Vec<&str> = words.take_while(|word| !["|", ">", "--"].contains(word)).collect();
    match (program.rsplit('/').next(), words.split_first()) {
        (Some("keyward"), Some((command, words))) if !command.starts_with('-') => {
            let keyward = Command::new(env!("CARGO_BIN_EXE_keyward"));
            check_options(place, keyward, command, words);
        }
        (Some("cargo"), Some((command, words))) => match alias(command) {
            Some(_) if *command == "demo" => {}
            Some(command) => check(place, &format!("cargo {command} {}", words.join(" "))),
            None => {
                check_options(place, Command::new(env!("CARGO")), command, words);
                check_target(place, words);
            }
        },
        _ => {}
    }
}

/// The cargo command and the options that an alias stands for. `cargo quick -h` would build the tests before it says anything.
fn alias(command: &str) -> Option<String> {
    let config = std::fs::read_to_string(repository().join(".cargo/config.toml")).unwrap();
    let alias = format!("{command} = \"");
    let text = config.lines().find_map(|line| line.strip_prefix(&alias))?;
    let text = text.trim_end_matches('"');
    Some(text.split_once(" -- ").map_or(text, |(options, _)| options).to_owned())
}

/// Each option is one that `program command --help` tells of.
fn check_options(place: &str, mut program: Command, command: &str, words: &[&str]) {
    // The options of `keyward constraints` are those of the word after it.
    let nested = words
        .first()
        .filter(|word| command == "constraints" && !word.starts_with('-'));
    let words_before = [command].into_iter().chain(nested.copied());
    let output = program.args(words_before).arg("-h").output().unwrap();
    assert!(output.status.success(), "{place}: {command}");
    let help = String::from_utf8(output.stdout).unwrap();
    for word in words.iter().filter(|word| word.starts_with("--")) {
        let option = word.split('=').next().unwrap();
        let told = help.split([' ', ',', '\n', '[', '=']).any(|told| told == option);
        assert!(told, "{place}: {command} has no {option}");
    }
}

/// The test, the benchmark or the package that `cargo` is to take is there.
fn check_target(place: &str, words: &[&str]) {
    for pair in words.windows(2) {
        let folders: &[&str] = match pair[0] {
            "--test" => &["tests/NAME.rs", "tests/NAME/main.rs"],
            "--bench" => &["benches/NAME.rs", "benches/NAME/main.rs"],
            "--package" | "-p" => &["NAME/Cargo.toml"],
            _ => continue,
        };
        let there = |path: &&str| repository().join(path.replace("NAME", pair[1])).exists();
        assert!(folders.iter().any(there), "{place}: {} {}", pair[0], pair[1]);
    }
}
