//! Intervals of shard key values, and lists of them: the union, the intersection and the opposite.

use std::cmp::Ordering;

use super::order::compare_elements;
use super::shard_key::KeyValue;

/// The values between two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    /// The lower end.
    pub start: KeyValue<'static>,
    /// The upper end.
    pub end: KeyValue<'static>,
    /// Holds the lower end itself.
    pub has_start: bool,
    /// Holds the upper end itself.
    pub has_end: bool,
}

impl Interval {
    /// One value.
    pub fn point(value: KeyValue<'static>) -> Self {
        Interval::closed(value.clone(), value)
    }

    /// From one value to another, both inclusive.
    pub fn closed(start: KeyValue<'static>, end: KeyValue<'static>) -> Self {
        Interval {
            start,
            end,
            has_start: true,
            has_end: true,
        }
    }

    /// Whether it holds one value only.
    pub fn is_point(&self) -> bool {
        self.has_start && self.has_end && compare(&self.start, &self.end).is_eq()
    }

    fn is_empty(&self) -> bool {
        match compare(&self.start, &self.end) {
            Ordering::Less => false,
            Ordering::Equal => !(self.has_start && self.has_end),
            Ordering::Greater => true,
        }
    }
}

/// Intervals in their order, none of which meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intervals(Vec<Interval>);

impl Intervals {
    /// All of these, in any order.
    pub fn new(intervals: impl IntoIterator<Item = Interval>) -> Self {
        let mut sorted: Vec<_> = intervals.into_iter().filter(|interval| !interval.is_empty()).collect();
        sorted.sort_by(compare_starts);
        let mut merged: Vec<Interval> = Vec::new();
        for next in sorted {
            match merged.last_mut().filter(|last| touches(last, &next)) {
                Some(last) if compare_ends(last, &next).is_lt() => {
                    last.end = next.end;
                    last.has_end = next.has_end;
                }
                Some(_) => {}
                None => merged.push(next),
            }
        }
        Intervals(merged)
    }

    /// Every value.
    pub fn everything() -> Self {
        Intervals::new([Interval::closed(KeyValue::MIN, KeyValue::MAX)])
    }

    /// The intervals.
    pub fn list(&self) -> &[Interval] {
        &self.0
    }

    /// The values in either.
    pub fn union(self, other: Intervals) -> Self {
        Intervals::new(self.0.into_iter().chain(other.0))
    }

    /// The values in both.
    pub fn intersection(&self, other: &Intervals) -> Self {
        let pairs = self
            .0
            .iter()
            .flat_map(|left| other.0.iter().map(move |right| (left, right)));
        Intervals::new(pairs.map(|(left, right)| {
            let starts_last = if compare_starts(left, right).is_ge() {
                left
            } else {
                right
            };
            let ends_first = if compare_ends(left, right).is_le() { left } else { right };
            Interval {
                start: starts_last.start.clone(),
                has_start: starts_last.has_start,
                end: ends_first.end.clone(),
                has_end: ends_first.has_end,
            }
        }))
    }

    /// All other values.
    pub fn complement(&self) -> Self {
        let mut others = Vec::new();
        let (mut start, mut has_start) = (KeyValue::MIN, true);
        for interval in &self.0 {
            others.push(Interval {
                start,
                has_start,
                end: interval.start.clone(),
                has_end: !interval.has_start,
            });
            (start, has_start) = (interval.end.clone(), !interval.has_end);
        }
        others.push(Interval {
            start,
            has_start,
            end: KeyValue::MAX,
            has_end: true,
        });
        Intervals::new(others)
    }
}

fn compare(left: &KeyValue<'_>, right: &KeyValue<'_>) -> Ordering {
    compare_elements(&left.as_element(), &right.as_element())
}

fn compare_starts(left: &Interval, right: &Interval) -> Ordering {
    compare(&left.start, &right.start).then(right.has_start.cmp(&left.has_start))
}

fn compare_ends(left: &Interval, right: &Interval) -> Ordering {
    compare(&left.end, &right.end).then(left.has_end.cmp(&right.has_end))
}

/// Whether nothing lies between an interval and one that starts no earlier.
fn touches(first: &Interval, second: &Interval) -> bool {
    match compare(&second.start, &first.end) {
        Ordering::Less => true,
        Ordering::Equal => first.has_end || second.has_start,
        Ordering::Greater => false,
    }
}

#[cfg(test)]
mod tests {
    use bson::spec::ElementType;

    use super::*;

    fn intervals(ends: &[(i32, i32)]) -> Intervals {
        let value = |number: i32| KeyValue::new(ElementType::Int32, number.to_le_bytes().to_vec());
        let closed = ends
            .iter()
            .map(|(start, end)| Interval::closed(value(*start), value(*end)));
        Intervals::new(closed)
    }

    #[test]
    fn intervals_that_meet_are_one() {
        assert_eq!(intervals(&[(5, 9), (1, 3), (2, 5)]), intervals(&[(1, 9)]));
        let (low, high) = (intervals(&[(1, 3)]), intervals(&[(5, 9)]));
        assert_eq!(low.clone().union(high.clone()), intervals(&[(1, 3), (5, 9)]));
        assert_eq!(low.intersection(&high), intervals(&[]));
        assert_eq!(
            intervals(&[(1, 6), (8, 9)]).intersection(&high),
            intervals(&[(5, 6), (8, 9)])
        );
    }

    #[test]
    fn the_opposite_of_the_opposite_is_the_same() {
        for ends in [&[][..], &[(1, 1)], &[(1, 3), (5, 9)]] {
            let given = intervals(ends);
            let others = given.complement();
            assert_eq!(others.complement(), given);
            assert_eq!(others.intersection(&given), intervals(&[]));
            assert_eq!(others.union(given), Intervals::everything());
        }
    }
}
