//! No line of the log and no message shows a value as `{:?}` does: people read them.

use proc_macro2::{TokenStream, TokenTree};

use super::markdown::{read, repository};
use super::messages::source_files;

/// The macros whose arguments are fields of a line of the log.
const OF_THE_LOG: [&str; 11] = [
    "trace",
    "debug",
    "info",
    "warn",
    "error",
    "event",
    "trace_span",
    "debug_span",
    "info_span",
    "warn_span",
    "error_span",
];
/// Macros whose texts only developers read: an invariant doesn't hold.
const OF_DEVELOPERS: [&str; 6] = [
    "assert",
    "assert_eq",
    "debug_assert",
    "debug_assert_eq",
    "panic",
    "unreachable",
];

/// The debug output that `tokens` write.
fn found(tokens: TokenStream, of_the_log: bool) -> Vec<String> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let text = |at: usize| tokens.get(at).map(ToString::to_string).unwrap_or_default();
        let before = |steps: usize| index.checked_sub(steps).map(text).unwrap_or_default();
        match token {
            TokenTree::Group(group) => {
                let is_macro = before(1) == "!";
                if before(1) == "#" && group.stream().to_string().replace(' ', "") == "cfg(test)" {
                    return found;
                }
                // `impl Debug` writes what no message shows.
                let is_for_debug =
                    (1..=4).any(|steps| before(steps) == "Debug") && (3..=8).any(|steps| before(steps) == "impl");
                if is_for_debug || is_macro && OF_DEVELOPERS.contains(&before(2).as_str()) {
                    continue;
                }
                let inside = is_macro && OF_THE_LOG.contains(&before(2).as_str());
                found.extend(self::found(group.stream(), inside));
            }
            TokenTree::Literal(literal) if literal.to_string().contains(":?}") => found.push(literal.to_string()),
            // A field is `?value` or `name = ?value`. Elsewhere the mark stands behind an expression.
            TokenTree::Punct(mark)
                if of_the_log && mark.as_char() == '?' && ["", ",", "="].contains(&before(1).as_str()) =>
            {
                found.push(format!("?{}", text(index + 1)));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn nothing_is_shown_as_debug_output() {
    let of_file = |path: &std::path::PathBuf| {
        let found = found(read(path).parse().unwrap(), false);
        let name = path.strip_prefix(repository()).unwrap().display().to_string();
        (!found.is_empty()).then(|| format!("{name}: {}", found.join(", ")))
    };
    let files: Vec<String> = source_files().iter().filter_map(of_file).collect();
    assert!(files.is_empty(), "{files:#?}");
}

#[test]
fn debug_output_is_found() {
    let found = |source: &str| found(source.parse().unwrap(), false);
    assert_eq!(found(r#"fn f() { tracing::warn!(?names, "x"); }"#), ["?names"]);
    assert_eq!(found(r#"fn f() { info!(a, watch = ?self.watch, "x"); }"#), ["?self"]);
    assert_eq!(found(r#"fn f() { format!("{a:?}") }"#), [r#""{a:?}""#]);
    assert!(found(r#"fn f() { warn!(count = all()?, "x"); assert!(a, "{a:?}"); }"#).is_empty());
}
