//! Puts the reasons for which `serde` refuses a value into an operator's words, and guesses which setting was meant.

use serde_yaml::Value;

use super::levels::place_of;

/// The types that `serde` expects, each in an operator's words.
const EXPECTED: [(&str, &str); 9] = [
    ("usize", "a whole number, 0 or more"),
    ("f64", "a number"),
    ("a boolean", "true or false"),
    ("a string", "text"),
    ("path string", "text"),
    ("a sequence", "a list"),
    ("a YAML mapping", "a mapping"),
    ("a map", "a mapping of settings"),
    ("struct ", "a mapping of settings"),
];
/// The kinds of values that `serde` names, each in an operator's words.
const FOUND: [(&str, &str); 7] = [
    ("integer ", "the number "),
    ("floating point ", "the number "),
    ("boolean ", ""),
    ("string ", "the text "),
    ("map", "a mapping"),
    ("sequence", "a list"),
    ("unit value", "nothing"),
];

/// The meaning of a message of `serde`.
pub(super) fn in_words(message: &str) -> String {
    let wrong = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "));
    if let Some((found, expected)) = wrong.and_then(|wrong| wrong.rsplit_once(", expected ")) {
        let expected = EXPECTED.iter().find(|(name, _)| expected.starts_with(name));
        let found = found_in_words(found);
        return match expected {
            Some((_, expected)) => format!("must be {expected}, not {found}"),
            None => format!("can't be {found}"),
        };
    }
    for (start, kind) in [("unknown field ", "setting"), ("unknown variant ", "value")] {
        if let Some((name, known)) = message
            .strip_prefix(start)
            .and_then(|rest| rest.split_once(", expected "))
        {
            let name = name.trim_matches('`');
            return match place_of(name).filter(|_| kind == "setting") {
                Some(place) => format!("unknown setting `{name}`; it belongs to {place}"),
                None => unknown(kind, name, &in_backquotes(known)),
            };
        }
    }
    message.to_owned()
}

fn found_in_words(found: &str) -> String {
    let known = FOUND
        .iter()
        .find_map(|(start, words)| Some((words, found.strip_prefix(start)?)));
    known.map_or_else(
        || found.to_owned(),
        |(words, rest)| format!("{words}{}", rest.replace('`', "")),
    )
}

/// The meaning of a message about text that isn't YAML.
pub(super) fn of_syntax(message: &str) -> String {
    // `serde_yaml` reads whole numbers of up to 128 bits, and has no value for those of more than 64.
    let number = message.split_once("invalid type: integer `");
    let number = number.and_then(|(setting, rest)| Some((setting, rest.split_once('`')?)));
    match number {
        Some((setting, (number, rest))) if [" as u128", " as i128"].iter().any(|size| rest.starts_with(size)) => {
            format!("{setting}the number {number} is too large; put text that looks like a number in quotes")
        }
        _ => message.to_owned(),
    }
}

/// Why `found` is refused where one of several words must stand; `message` is what `serde` says of a wrong word.
pub(super) fn not_a_word(message: &str, found: &Value) -> String {
    let known = in_backquotes(message.rsplit_once(", expected ").map_or("", |(_, known)| known));
    let known = match known.split_last() {
        Some((last, first)) if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => known.concat(),
    };
    let found = match found {
        Value::Number(number) => format!("the number {number}"),
        Value::Bool(flag) => flag.to_string(),
        Value::Sequence(_) => "a list".to_owned(),
        _ => "a mapping".to_owned(),
    };
    format!("must be {known}, not {found}")
}

fn in_backquotes(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// A shorter part of a name is in too many names.
const PART_LETTERS_MIN: usize = 3;

/// Why a name that isn't one of those `known` here is refused. It proposes the closest, if that is close.
pub fn unknown(kind: &str, name: &str, known: &[&str]) -> String {
    let bare = plain_letters(name);
    let contains = |known: &str| bare.len() >= PART_LETTERS_MIN && plain_letters(known).contains(&bare);
    let closest = known
        .iter()
        .min_by_key(|known| (!contains(known), distance(name, known)));
    match closest {
        // A third of the letters may be wrong, or a part of the name missing.
        Some(closest) if distance(name, closest) <= closest.len().div_ceil(3) || contains(closest) => {
            format!("unknown {kind} `{name}`; did you mean `{closest}`?")
        }
        _ => format!("unknown {kind} `{name}`; known here: {}", known.join(", ")),
    }
}

/// The name's letters and digits, without signs and case: `partial_filter` is a part of `partialFilterExpression`.
fn plain_letters(name: &str) -> String {
    let letters = name.chars().filter(|letter| letter.is_alphanumeric());
    letters.flat_map(char::to_lowercase).collect()
}

/// How many letters to insert, delete, replace or swap with their neighbour to make `other` of `one`.
fn distance(one: &str, other: &str) -> usize {
    let one: Vec<char> = one.to_lowercase().chars().collect();
    let other: Vec<char> = other.to_lowercase().chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.iter().enumerate() {
        let mut this = vec![row + 1];
        for (column, candidate) in other.iter().enumerate() {
            let replaced = last[column] + usize::from(letter != candidate);
            let mut least = replaced.min(last[column + 1] + 1).min(this[column] + 1);
            let is_swapped = row > 0 && column > 0 && one[row - 1] == *candidate && *letter == other[column - 1];
            if is_swapped {
                least = least.min(before[column - 1] + 1);
            }
            this.push(least);
        }
        before = std::mem::replace(&mut last, this);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_named_as_people_name_them() {
        for (message, words) in [
            (
                "invalid type: string \"many\", expected usize",
                "must be a whole number, 0 or more, not the text \"many\"",
            ),
            (
                "invalid value: integer `-1`, expected usize",
                "must be a whole number, 0 or more, not the number -1",
            ),
            (
                "invalid type: integer `7`, expected struct RawConstraint",
                "must be a mapping of settings, not the number 7",
            ),
            (
                "invalid type: map, expected a sequence",
                "must be a list, not a mapping",
            ),
            (
                "invalid type: boolean `true`, expected a string",
                "must be text, not true",
            ),
            ("not a duration such as 30s", "not a duration such as 30s"),
        ] {
            assert_eq!(in_words(message), words);
        }
    }

    #[test]
    fn a_number_that_is_too_large_is_named_with_its_setting() {
        let message = "lease: invalid type: integer `99` as u128, expected any YAML value at line 1 column 8";
        assert_eq!(
            of_syntax(message),
            "lease: the number 99 is too large; put text that looks like a number in quotes"
        );
        assert_eq!(of_syntax("did not find expected key"), "did not find expected key");
    }

    #[test]
    fn the_closest_setting_is_proposed_if_it_is_close() {
        let known = "expected one of `listen`, `lease`, `upstream`, `partialFilterExpression`";
        for (name, end) in [
            ("listne", "; did you mean `listen`?"),
            ("Lease", "; did you mean `lease`?"),
            ("partial_filter_expression", "; did you mean `partialFilterExpression`?"),
            ("Expression", "; did you mean `partialFilterExpression`?"),
            ("partial_filter", "; did you mean `partialFilterExpression`?"),
            (
                "colour",
                "; known here: listen, lease, upstream, partialFilterExpression",
            ),
        ] {
            let message = in_words(&format!("unknown field `{name}`, {known}"));
            assert_eq!(message, format!("unknown setting `{name}`{end}"));
        }
        assert_eq!(
            in_words(&format!("unknown field `on_violation`, {known}")),
            "unknown setting `on_violation`; it belongs to each item of `constraints`"
        );
        assert_eq!(
            in_words("unknown variant `jsno`, expected `text` or `json`"),
            "unknown value `jsno`; did you mean `json`?"
        );
    }

    #[test]
    fn a_distance_counts_letters() {
        for (one, other, count) in [
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("abc", "acb", 1),
            ("key", "kez", 1),
            ("a", "b", 1),
        ] {
            assert_eq!(distance(one, other), count, "{one} {other}");
        }
    }
}
