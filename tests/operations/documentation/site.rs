//! What mdBook makes a site of (`docs/book.toml`, `docs/SUMMARY.md`), and that every link leads somewhere: on the site, and where
//! the documents are read as files.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::documentation::markdown::{Page, pages, repository};

/// The documents of the site, as its summary names them.
fn chapters() -> Vec<String> {
    let links = Page::read("docs/SUMMARY.md").links();
    links.into_iter().map(|(_, chapter)| chapter).collect()
}

#[test]
fn the_site_has_every_document_once() {
    let chapters = chapters();
    let each: BTreeSet<String> = chapters.iter().map(|chapter| format!("docs/{chapter}")).collect();
    assert_eq!(each.len(), chapters.len(), "{chapters:?}");
    let paths = pages().into_iter().map(|page| page.path);
    let there: BTreeSet<String> = paths
        .filter(|path| path.starts_with("docs/") && path != "docs/SUMMARY.md")
        .collect();
    assert_eq!(each, there);
}

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        for (place, link) in page.links() {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = Path::new(&page.path).parent().unwrap();
            let target = match file {
                "" => page.path.clone(),
                file => folder.join(file).to_str().unwrap().to_owned(),
            };
            assert!(repository().join(&target).exists(), "{place}: {link}");
            if !anchor.is_empty() {
                let anchors = Page::read(&target).anchors();
                assert!(anchors.contains(anchor), "{place}: {link}; there are {anchors:?}");
            }
        }
    }
}

/// The site holds what is in docs/ and nothing else.
#[test]
fn no_link_leads_out_of_the_site() {
    for page in pages() {
        for (place, link) in page.links() {
            let leaves = link.starts_with("../") || link.starts_with('/');
            assert!(!(leaves && page.path.starts_with("docs/")), "{place}: {link}");
        }
    }
}

/// Left out where mdBook isn't installed: what it would find fault with, the tests above find, too.
#[test]
fn mdbook_makes_the_site() {
    let folder = tempfile::tempdir().unwrap();
    let mut mdbook = Command::new("mdbook");
    mdbook
        .arg("build")
        .arg(repository().join("docs"))
        .arg("--dest-dir")
        .arg(folder.path());
    let Ok(output) = mdbook.output() else {
        eprintln!("mdbook isn't installed: the site is not made");
        return;
    };
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let complains = said.contains("ERROR") || said.contains("WARN");
    assert!(output.status.success() && !complains, "{said}");
    for chapter in chapters() {
        let page = std::fs::read_to_string(folder.path().join(&chapter).with_extension("html")).unwrap();
        assert!(page.contains("<main>"), "{chapter}");
    }
}
