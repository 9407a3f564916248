//! `docs/performance.md`: what a run has measured goes between the markers that bear its name.

use std::path::PathBuf;

use crate::pictures;
use crate::stored::Table;

/// Replaces what stands between `<!-- name -->` and `<!-- /name -->`.
pub fn write(name: &str, text: &str) {
    let page = read();
    let (before, _, after) = parts(name, &page);
    let [begin, end] = markers(name);
    std::fs::write(file(), format!("{before}{begin}{}\n{end}{after}", text.trim_end())).unwrap();
}

/// Draws the pictures of a table from the figures that are on the page, and puts them above it.
pub fn draw(name: &str) {
    let page = read();
    let (_, text, _) = parts(name, &page);
    let pictures = pictures::of(name, &Table::all_in(text));
    if pictures.is_empty() {
        return;
    }
    let mut with_pictures = String::new();
    for picture in pictures {
        let link = format!("performance/{}.svg", picture.file);
        svg::save(docs().join(&link), &picture.drawing).unwrap();
        with_pictures.push_str(&format!("![{}]({link})\n\n", picture.question));
    }
    with_pictures.extend(
        text.lines()
            .skip_while(|line| !line.starts_with('|'))
            .map(|line| format!("{line}\n")),
    );
    write(name, &with_pictures);
}

/// What stands before the markers, between them and after them.
fn parts<'p>(name: &str, page: &'p str) -> (&'p str, &'p str, &'p str) {
    let [begin, end] = markers(name);
    let (before, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{begin} isn't in performance.md"));
    let (text, after) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("{end} isn't in performance.md"));
    (before, text, after)
}

fn markers(name: &str) -> [String; 2] {
    [format!("<!-- {name} -->\n"), format!("<!-- /{name} -->")]
}

fn read() -> String {
    std::fs::read_to_string(file()).unwrap()
}

fn file() -> PathBuf {
    docs().join("performance.md")
}

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs")
}
