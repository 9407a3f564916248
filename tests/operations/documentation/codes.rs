//! Error codes in `src/`: only `server/code.rs` writes them as numbers, and so names each of them.

use std::collections::BTreeSet;

use crate::documentation::names::source;
use crate::documentation::ways::words;

/// The numbers of the list that no constant of another meaning has by chance.
fn listed(list: &str) -> BTreeSet<u32> {
    let number = |line: &str| number(line.split_once(" = ")?.1.split([' ', ';']).next()?);
    list.lines().filter_map(number).filter(|code| *code >= 100).collect()
}

/// A number as Rust writes it; `None` for another word, and for numbers that aren't codes.
fn number(word: &str) -> Option<u32> {
    let digits = word.trim_end_matches("i32").replace('_', "");
    digits.parse().ok().filter(|number| *number > 1)
}

/// Whether `text` speaks of an error's code.
fn reads_a_code(text: &str) -> bool {
    words(text).any(|(_, _, word, _)| ["code", "code_of", "error_code"].contains(&word))
}

/// Whether the number between these texts is a pattern that a code is compared with.
fn is_compared(before: &str, after: &str) -> bool {
    let is_operand = ["== ", "!= ", "== Some(", "!= Some("]
        .iter()
        .any(|end| before.ends_with(end));
    let clause = before
        .rsplit([';', '{', '}', '&', '|', ','])
        .find(|part| part.contains('='));
    let is_pattern = [" =>", ") =>", " |", ")"].iter().any(|start| after.starts_with(start));
    let of_match = before.rsplit_once("match ").and_then(|(_, rest)| rest.split_once('{'));
    let of_macro = before
        .rsplit_once("matches!(")
        .and_then(|(_, rest)| rest.split_once(", "));
    let is_read =
        |read: Option<(&str, &str)>| read.is_some_and(|(read, rest)| !rest.contains(';') && reads_a_code(read));
    is_operand && clause.is_some_and(reads_a_code) || is_pattern && (is_read(of_match) || is_read(of_macro))
}

/// The error codes that `code` writes as numbers, each with the text before it.
fn numbers(code: &str, listed: &BTreeSet<u32>) -> Vec<String> {
    let code = code.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(");
    let is_code = |before: &str, number: u32, after: &str| {
        let is_behind = |ends: &[&str]| ends.iter().any(|end| before.ends_with(end));
        let name = after.strip_prefix(", \"").filter(|_| before.ends_with('('));
        let (_, function) = before.rsplit_once("fn ").unwrap_or_default();
        let is_of_code = function
            .split(['(', '<'])
            .next()
            .is_some_and(|name| name.ends_with("code"));
        is_behind(&[" code: ", "\"code\": ", "\"code\", ", "refused("])
            || name.is_some_and(|name| name.starts_with(char::is_uppercase))
            || is_of_code && is_behind(&["=> ", "=> Some("])
            || before.ends_with(": i32 = ") && listed.contains(&number)
            || is_compared(before, after)
    };
    let written = words(&code).filter_map(|(at, _, word, after)| {
        let before = &code[..at];
        is_code(before, number(word)?, after).then(|| {
            let start = before.char_indices().rev().nth(50).map_or(0, |(start, _)| start);
            format!("{}{word}", &before[start..])
        })
    });
    written.collect()
}

/// A reader finds by its name where a code is sent or read, and every reply has the server's name for its code.
#[test]
fn no_error_code_is_a_number_outside_the_list() {
    let mut source = source();
    let listed = listed(&source.remove("server/code.rs").unwrap());
    assert!(listed.len() > 50, "{listed:?}");
    let of_file = |(file, code): (&String, &String)| {
        let numbers = numbers(code, &listed).into_iter();
        numbers.map(|number| format!("{file}: {number}")).collect::<Vec<_>>()
    };
    let written: Vec<_> = source.iter().flat_map(of_file).collect();
    assert!(written.is_empty(), "these belong into server/code.rs: {written:#?}");
}

#[test]
fn a_number_as_an_error_code_is_found() {
    let is_found = |code: &str| !numbers(code, &BTreeSet::from([217])).is_empty();
    for code in [
        "fn code(&self) -> Option<i32> { match self { A { .. } => Some(171), _ => None } }",
        "fn code(&self) -> i32 { match self { A => 9, } }",
        "let (code, name) = match self { A => (13, \"Unauthorized\"), };",
        "return Err(SpecError::refused(\n    13103,\n    \"too many compound keys\"));",
        "ServerError { code: 13, message }",
        "doc! { \"ok\": 0.0, \"code\": 67 }",
        "reply.int32(\"code\", 91);",
        "if error.code == 11_000 && n > 0 {}",
        "if reply::code(answer)? != Some(13) {}",
        "match code { code::BAD_VALUE => \"BadValue\", 13_103 => \"Location13103\", _ => \"\" }",
        "matches!(driver::code_of(error), Some(26 | 361))",
        "const INCOMPLETE_TRANSACTION_HISTORY: i32 = 217;",
    ] {
        assert!(is_found(code), "{code}");
    }
    for code in [
        "fn code(&self) -> i32 { match self { A => code::BAD_VALUE } }",
        "Header { op_code: 2013, request_id: 7 }",
        "const PAGE: i32 = 200;",
        "if error.code == DUPLICATE_KEY && n == 2 {}",
        "match code { 10_000.. => true, _ => false }",
        "match kind { 3 => 4, _ => 5 }",
    ] {
        assert!(!is_found(code), "{code}");
    }
}
