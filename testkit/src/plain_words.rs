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
/// The values that MongoDB's shell and its servers write with brackets.
const OF_THE_SHELL: [&str; 9] = [
    "BinData",
    "Date",
    "ISODate",
    "MaxKey",
    "MinKey",
    "NumberDecimal",
    "NumberLong",
    "ObjectId",
    "Timestamp",
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
        .or_else(|| type_with_its_value(text))
}

/// A name as Rust's types have it, such as `Query`, directly before its fields: `Query {` or `Name(`. A line about a panic is for
/// developers, and quotes it.
fn type_with_its_value(text: &str) -> Option<&str> {
    let mut lines = text.lines().filter(|line| !line.contains("an invariant does not hold"));
    lines.find_map(type_in_line)
}

fn type_in_line(line: &str) -> Option<&str> {
    let opened = line.match_indices(" {").chain(line.match_indices('('));
    let mut names = opened.map(|(end, _)| {
        let is_of_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        &line[line[..end].trim_end_matches(is_of_name).len()..end]
    });
    names.find(|name| {
        name.starts_with(|first: char| first.is_ascii_uppercase())
            && name.contains(|other: char| other.is_ascii_lowercase())
            && !OF_THE_SHELL.contains(name)
    })
}

/// Fails if `text`, which people read, holds debug output.
pub fn assert_in_plain_words(text: &str) {
    if let Some(part) = debug_output(text) {
        panic!("debug output ({part}) before people's eyes:\n{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_of_any_type_is_found() {
        for (text, part) in [
            ("no records found for Query { name: 1 }", Some("Query")),
            ("the name is Name(\"h.\")", Some("Name")),
            ("a document {\"a\":1}, Timestamp(1, 2) and a function f(x)", None),
            ("Keyward (this one) holds {}", None),
            ("an invariant does not hold: SendError { .. }", None),
        ] {
            assert_eq!(debug_output(text), part, "{text}");
        }
    }
}
