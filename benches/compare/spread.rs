//! Several measurements of one thing.

use std::fmt;

/// The median, between the smallest and the largest.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    /// Of what rounds came to; there is one at least.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Spread {
            least: sorted[0],
            median: sorted[sorted.len() / 2],
            most: sorted[sorted.len() - 1],
        }
    }

    /// As a table states it; a number alone is its own range.
    pub fn read(text: &str) -> Spread {
        let text = text.replace("**", "");
        let number = |text: &str| text.trim().parse().expect("a number");
        let (median, range) = text.split_once('(').unwrap_or((&text, ""));
        let median = number(median);
        let range = range.trim_end_matches(')').split_once(" to ");
        let (least, most) = range.map_or((median, median), |(least, most)| (number(least), number(most)));
        Spread { least, median, most }
    }

    /// As a multiple of `base`.
    pub fn over(self, base: f64) -> Spread {
        Spread {
            least: self.least / base,
            median: self.median / base,
            most: self.most / base,
        }
    }

    /// Of the ratios, round by round: what disturbs a round disturbs both of its figures.
    pub fn of_ratios(figures: &[f64], to: &[f64]) -> Spread {
        Spread::of(figures.iter().zip(to).map(|(figure, to)| figure / to))
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { least, median, most } = self;
        write!(formatter, "**{median:.2}** ({least:.2} to {most:.2})")
    }
}
