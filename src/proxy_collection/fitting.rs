//! How much goes into one command.

/// The limits of one command.
#[derive(Debug, Clone, Copy)]
pub struct Fitting {
    /// So many items at most.
    pub items: usize,
    /// So many bytes of them at most.
    pub bytes: usize,
}

impl Fitting {
    /// How many of `items`, each as large as `size` says, go into one command: one at least, if there is one, even if it is
    /// larger than it should be.
    pub fn count<T>(self, items: &[T], size: impl Fn(&T) -> usize) -> usize {
        let mut bytes = 0;
        let fits = |item: &&T| {
            bytes += size(item);
            bytes <= self.bytes
        };
        let count = items.iter().take(self.items).take_while(fits).count();
        count.max(1).min(items.len())
    }

    /// `items` in the parts that one command each can take.
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
        // One that is larger than it should be goes alone.
        assert_eq!(lengths(&[1, 11, 1]), [1, 1, 1]);
    }
}
