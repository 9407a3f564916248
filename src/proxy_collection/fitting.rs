//! Limits the number and the size of the items in one command.

/// The limits of one command.
#[derive(Debug, Clone, Copy)]
pub struct Fitting {
    /// The maximum number of items.
    pub items: usize,
    /// The maximum size of all items in bytes.
    pub bytes: usize,
}

impl Fitting {
    /// How many of `items` go into one command, if each is as large as `size` says.
    ///
    /// At least one, if there is one, even if it exceeds the limit.
    pub fn count<T>(self, items: &[T], size: impl Fn(&T) -> usize) -> usize {
        let mut bytes = 0;
        let fits = |item: &&T| {
            bytes += size(item);
            bytes <= self.bytes
        };
        let count = items.iter().take(self.items).take_while(fits).count();
        count.max(1).min(items.len())
    }

    /// Splits `items` into parts, each for one command.
    pub fn parts<T>(self, items: &[T], size: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
        let mut rest = items;
        std::iter::from_fn(move || {
            let (part, others) = rest.split_at(self.count(rest, &size));
            rest = others;
            (!part.is_empty()).then_some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_in_one_part_and_no_part_is_too_large() {
        let most = Fitting { items: 3, bytes: 10 };
        let lengths = |sizes: &[usize]| most.parts(sizes, |size| *size).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!(lengths(&[]), [0; 0]);
        assert_eq!(lengths(&[1, 1, 1, 1]), [3, 1]);
        assert_eq!(lengths(&[5, 5, 5]), [2, 1]);
        // An item over the limit goes alone.
        assert_eq!(lengths(&[1, 11, 1]), [1, 1, 1]);
    }
}
