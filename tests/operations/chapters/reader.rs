//! Follows one document: does what its blocks say, in their order, and compares what comes of it.

use crate::chapters::place::Place;
use crate::documentation::markdown::{Block, Page, Run};

/// What is put in the place of a part of a line that is another one each time.
const ANYTHING: char = '…';

/// Follows the document `path` to its end.
pub fn follow(path: &str, mut place: Place) {
    // What the last block printed, if it was run.
    let mut printed: Option<String> = None;
    for block in Page::read(path).blocks() {
        println!("{}", block.place);
        printed = match (&*block.language, &block.run) {
            ("yaml", _) => {
                if let Some(name) = file_name(&block) {
                    place.write(&name, &block.text);
                }
                None
            }
            ("text", _) => {
                let printed = printed.unwrap_or_else(|| panic!("{}: what prints this?", block.place));
                compare(&block, &place.resolved(&block.text), &printed);
                None
            }
            ("js", _) => Some(place.type_into_shell(&block)),
            ("sh", Run::ToItsEnd) => Some(place.run(&block, 0)),
            ("sh", Run::Failing(code)) => Some(place.run(&block, *code)),
            ("sh", Run::Foreground) => Some(place.start(&block)),
            ("sh", Run::Stop(_)) => {
                place.stop();
                None
            }
            _ => None,
        };
    }
    place.stop();
}

/// The file that a sample is: `# keyward.yaml` stands above it.
pub fn file_name(block: &Block) -> Option<String> {
    let name = block.text.lines().next()?.strip_prefix("# ")?;
    name.ends_with(".yaml").then(|| name.to_owned())
}

/// Each line that the document shows was printed, in that order.
fn compare(block: &Block, shown: &str, printed: &str) {
    let mut lines = printed.lines();
    for line in shown.lines() {
        assert!(
            lines.any(|printed| is_like(line.trim(), printed.trim())),
            "{}: this was not printed:\n{line}\nbut:\n{printed}",
            block.place
        );
    }
}

fn is_like(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split(ANYTHING);
    let Some(rest) = parts.next().and_then(|first| printed.strip_prefix(first)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    let between = parts.iter().try_fold(rest, |rest, part| Some(rest.split_once(part)?.1));
    between.is_some_and(|rest| rest.ends_with(last))
}

#[test]
fn what_differs_each_time_is_anything() {
    assert!(is_like("a … c", "a b c"));
    assert!(is_like("a", "a") && !is_like("a", "ab"));
    assert!(is_like("… b … d", "a b c d") && !is_like("… b … d", "a c d"));
}
