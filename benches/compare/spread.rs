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
