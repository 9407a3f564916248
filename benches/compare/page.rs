//! `docs/performance.md`: what a run has measured goes between the markers that bear its name.

use std::path::PathBuf;

/// Replaces what stands between `<!-- name -->` and `<!-- /name -->`.
pub fn write(name: &str, text: &str) {
    rewrite(name, |_| text.to_owned());
}

/// The same with what `write` makes of the former text.
pub fn rewrite(name: &str, write: impl FnOnce(&str) -> String) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/performance.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let [begin, end] = [format!("<!-- {name} -->\n"), format!("<!-- /{name} -->")];
    let (before, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{begin} isn't in performance.md"));
    let (former, after) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("{end} isn't in performance.md"));
    let text = write(former);
    std::fs::write(&file, format!("{before}{begin}{}\n{end}{after}", text.trim_end())).unwrap();
}
