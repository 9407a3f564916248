//! Puts the reasons for which `serde` refuses a value into an operator's words, and guesses which setting was meant.

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
        if let Some((_, expected)) = expected {
            return format!("must be {expected}, not {}", found_in_words(found));
        }
    }
    for (start, kind) in [("unknown field ", "setting"), ("unknown variant ", "value")] {
        if let Some((name, known)) = message
            .strip_prefix(start)
            .and_then(|rest| rest.split_once(", expected "))
        {
            return unknown(kind, name, known);
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

/// `name` and `known` are in backquotes.
fn unknown(kind: &str, name: &str, known: &str) -> String {
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let bare = name.trim_matches('`');
    let closest = known
        .iter()
        .min_by_key(|known| (!known.contains(bare), distance(bare, known)));
    match closest {
        // A third of the letters may be wrong, or a part of the name missing.
        Some(closest) if distance(bare, closest) <= closest.len().div_ceil(3) || closest.contains(bare) => {
            format!("unknown {kind} {name}; did you mean `{closest}`?")
        }
        _ => format!("unknown {kind} {name}; known here: {}", known.join(", ")),
    }
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
    fn the_closest_setting_is_proposed_if_it_is_close() {
        let known = "expected one of `listen`, `lease`, `upstream`, `partialFilterExpression`";
        for (name, end) in [
            ("listne", "; did you mean `listen`?"),
            ("Lease", "; did you mean `lease`?"),
            ("partial_filter_expression", "; did you mean `partialFilterExpression`?"),
            ("Expression", "; did you mean `partialFilterExpression`?"),
            (
                "colour",
                "; known here: listen, lease, upstream, partialFilterExpression",
            ),
        ] {
            let message = in_words(&format!("unknown field `{name}`, {known}"));
            assert_eq!(message, format!("unknown setting `{name}`{end}"));
        }
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
