//! Writes a number with the things that it counts, in the singular or the plural.

use std::fmt;

/// So many of a thing, for which the singular is given: `1 document`, `2 documents`.
#[derive(Debug, Clone, Copy)]
pub struct Counted<N>(pub N, pub &'static str);

impl<N: fmt::Display + PartialEq + From<u8>> fmt::Display for Counted<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counted(count, thing) = self;
        let plural = if *count == N::from(1) { "" } else { "s" };
        write!(formatter, "{count} {thing}{plural}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_singular() {
        let shown = [0, 1, 2].map(|count| Counted(count, "document").to_string());
        assert_eq!(shown, ["0 documents", "1 document", "2 documents"]);
    }
}
