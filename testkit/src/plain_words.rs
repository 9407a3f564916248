//! Refuses Rust's debug output where people read.

/// Parts of what `{:?}` prints, and of the texts of a driver's errors.
const DEBUG_OUTPUT: [&str; 15] = [
    "Some(",
    "None",
    "Ok(",
    "Err(",
    "Kind:",
    "kind:",
    "Error {",
    "{ data:",
    "RawDocumentBuf",
    "Document(",
    "labels:",
    "source:",
    "Topology",
    "Rs",
    "RawBson",
];
/// An ObjectId has 24 hexadecimal digits, and a UUID 32.
const HEX_DIGITS_MAX: usize = 40;

/// The part of `text` that is debug output, if one is.
pub fn debug_output(text: &str) -> Option<&str> {
    let hex = text.split(|character: char| !character.is_ascii_hexdigit());
    let dump = hex.into_iter().find(|digits| digits.len() > HEX_DIGITS_MAX);
    let is_word = |part: &str| {
        text.match_indices(part).any(|(start, _)| {
            let before = text[..start].chars().next_back();
            !before.is_some_and(char::is_alphanumeric)
        })
    };
    dump.or_else(|| DEBUG_OUTPUT.into_iter().find(|part| is_word(part)))
}

/// Fails if `text`, which people read, holds debug output.
pub fn assert_in_plain_words(text: &str) {
    if let Some(part) = debug_output(text) {
        panic!("debug output ({part}) before people's eyes:\n{text}");
    }
}
