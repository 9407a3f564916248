//! `docs/performance.md`: what a run has measured goes between the markers that bear its name.

use std::path::PathBuf;

/// Replaces what stands between `<!-- name -->` and `<!-- /name -->`.
pub fn write(name: &str, text: &str) {
    let file = docs().join("performance.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let [begin, end] = [format!("<!-- {name} -->\n"), format!("<!-- /{name} -->")];
    let (before, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{begin} isn't in performance.md"));
    let (_, after) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("{end} isn't in performance.md"));
    std::fs::write(&file, format!("{before}{begin}{}\n{end}{after}", text.trim_end())).unwrap();
}

/// Writes a drawing beside the page.
pub fn draw(name: &str, drawing: &svg::Document) {
    let folder = docs().join("performance");
    std::fs::create_dir_all(&folder).unwrap();
    svg::save(folder.join(format!("{name}.svg")), drawing).unwrap();
}

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs")
}
