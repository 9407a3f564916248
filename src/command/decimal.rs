//! Adds and multiplies Decimal128s as the server does: with 34 digits, and ties to even.
//!
//! The result is the same number as the server's, perhaps with other zeros at its end. It has no sign if it is zero. A key
//! doesn't show either.

use num_bigint::{BigInt, BigUint, Sign};

use crate::raw::{decimal_coefficient, mantissa_and_exponent};

/// The digits of a Decimal128.
const DIGITS: u32 = 34;
/// The digits that the server keeps of a double.
const DIGITS_OF_DOUBLE: u32 = 15;
/// The exponent of a Decimal128 with 34 digits.
const EXPONENTS: std::ops::RangeInclusive<i32> = -6176..=6111;

const NAN: u128 = 0x1f << 122;
const INFINITY: u128 = 0x1e << 122;
const NEGATIVE: u128 = 1 << 127;

/// A Decimal128, or the exact result of an operation on two of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decimal {
    /// Not a number.
    Nan,
    /// Beyond all numbers.
    Infinite {
        /// Whether it is below all numbers.
        is_negative: bool,
    },
    /// `coefficient` * 10^`exponent`.
    Finite {
        /// The digits, with the sign.
        coefficient: BigInt,
        /// The power of ten.
        exponent: i32,
    },
}

impl Decimal {
    /// The number that a Decimal128's bits encode.
    pub fn of_bits(bits: u128) -> Decimal {
        let is_negative = bits & NEGATIVE != 0;
        match decimal_coefficient(bits) {
            None if bits & NAN == NAN => Decimal::Nan,
            None => Decimal::Infinite { is_negative },
            Some(0) => Decimal::whole(0),
            Some(coefficient) => Decimal::Finite {
                coefficient: signed(is_negative, BigUint::from(coefficient)),
                exponent: ((bits >> 113) & 0x3fff) as i32 + EXPONENTS.start(),
            },
        }
    }

    /// A whole number.
    pub fn whole(number: i64) -> Decimal {
        Decimal::Finite {
            coefficient: number.into(),
            exponent: 0,
        }
    }

    /// The Decimal128 that the server makes of a double. It has 15 digits, which are rounded from 34.
    pub fn of_double(double: f64) -> Decimal {
        if double.is_nan() {
            return Decimal::Nan;
        }
        let is_negative = double.is_sign_negative();
        if double.is_infinite() {
            return Decimal::Infinite { is_negative };
        }
        let (mantissa, binary_exponent) = mantissa_and_exponent(double.abs());
        let mantissa = BigUint::from(mantissa);
        // 2^-n is 5^n * 10^-n.
        let (coefficient, exponent) = match binary_exponent >= 0 {
            true => (mantissa << binary_exponent.unsigned_abs(), 0),
            false => {
                let power = BigUint::from(5_u32).pow(binary_exponent.unsigned_abs());
                (mantissa * power, binary_exponent)
            }
        };
        let (coefficient, exponent) = with_digits(coefficient, exponent, DIGITS);
        let (coefficient, exponent) = with_digits(coefficient, exponent, DIGITS_OF_DOUBLE);
        Decimal::Finite {
            coefficient: signed(is_negative, coefficient),
            exponent,
        }
    }

    /// The exact sum.
    pub fn plus(&self, other: &Decimal) -> Decimal {
        match (self, other) {
            (Decimal::Nan, _) | (_, Decimal::Nan) => Decimal::Nan,
            (Decimal::Infinite { is_negative: one }, Decimal::Infinite { is_negative: other }) if one != other => {
                Decimal::Nan
            }
            (infinite @ Decimal::Infinite { .. }, _) | (_, infinite @ Decimal::Infinite { .. }) => infinite.clone(),
            (
                Decimal::Finite {
                    coefficient: one,
                    exponent: of_one,
                },
                Decimal::Finite {
                    coefficient: other,
                    exponent: of_other,
                },
            ) => {
                let exponent = *of_one.min(of_other);
                let scaled =
                    |coefficient: &BigInt, own: i32| coefficient * BigInt::from(ten_to(own.abs_diff(exponent)));
                Decimal::Finite {
                    coefficient: scaled(one, *of_one) + scaled(other, *of_other),
                    exponent,
                }
            }
        }
    }

    /// The exact product.
    pub fn times(&self, other: &Decimal) -> Decimal {
        match (self, other) {
            (
                Decimal::Finite {
                    coefficient: one,
                    exponent: of_one,
                },
                Decimal::Finite {
                    coefficient: other,
                    exponent: of_other,
                },
            ) => Decimal::Finite {
                coefficient: one * other,
                exponent: of_one + of_other,
            },
            (one, other) => match (one.sign(), other.sign()) {
                (Some(Sign::NoSign) | None, _) | (_, Some(Sign::NoSign) | None) => Decimal::Nan,
                (one, other) => Decimal::Infinite {
                    is_negative: one != other,
                },
            },
        }
    }

    /// `None` for what isn't a number.
    fn sign(&self) -> Option<Sign> {
        match self {
            Decimal::Nan => None,
            Decimal::Infinite { is_negative: true } => Some(Sign::Minus),
            Decimal::Infinite { is_negative: false } => Some(Sign::Plus),
            Decimal::Finite { coefficient, .. } => Some(coefficient.sign()),
        }
    }

    /// The bits of the nearest Decimal128.
    pub fn to_bits(&self) -> u128 {
        let (coefficient, exponent) = match self {
            Decimal::Nan => return NAN,
            Decimal::Infinite { is_negative: true } => return NEGATIVE | INFINITY,
            Decimal::Infinite { is_negative: false } => return INFINITY,
            Decimal::Finite { coefficient, exponent } => (coefficient, *exponent),
        };
        let sign = if coefficient.sign() == Sign::Minus { NEGATIVE } else { 0 };
        let too_many = digits(coefficient.magnitude()).saturating_sub(DIGITS);
        let too_small = u32::try_from(EXPONENTS.start() - exponent).unwrap_or(0);
        let (coefficient, exponent) =
            without_digits(coefficient.magnitude().clone(), exponent, too_many.max(too_small));
        let (mut coefficient, mut exponent) = with_digits(coefficient, exponent, DIGITS);
        if coefficient == BigUint::ZERO {
            exponent = exponent.clamp(*EXPONENTS.start(), *EXPONENTS.end());
        }
        let padding = u32::try_from(exponent - EXPONENTS.end()).unwrap_or(0);
        if digits(&coefficient) + padding > DIGITS {
            return sign | INFINITY;
        }
        coefficient *= ten_to(padding);
        exponent = exponent.min(*EXPONENTS.end());
        let coefficient = u128::try_from(coefficient).expect("34 digits fit 113 bits");
        let biased = u128::try_from(exponent - EXPONENTS.start()).expect("no smaller exponent is left");
        sign | biased << 113 | coefficient
    }
}

fn signed(is_negative: bool, magnitude: BigUint) -> BigInt {
    let sign = if is_negative { Sign::Minus } else { Sign::Plus };
    BigInt::from_biguint(sign, magnitude)
}

fn ten_to(power: u32) -> BigUint {
    BigUint::from(10_u32).pow(power)
}

fn digits(number: &BigUint) -> u32 {
    u32::try_from(number.to_string().len()).expect("a sum of two Decimal128s has some 12,000 digits")
}

/// The number rounded to at most `most` digits.
fn with_digits(coefficient: BigUint, exponent: i32, most: u32) -> (BigUint, i32) {
    let dropped = digits(&coefficient).saturating_sub(most);
    let (rounded, exponent) = without_digits(coefficient, exponent, dropped);
    // Rounding up has made a digit more: a power of ten.
    match digits(&rounded) > most {
        true => (rounded / 10_u32, exponent + 1),
        false => (rounded, exponent),
    }
}

/// The number rounded, ties to even, so that it has `dropped` digits less.
fn without_digits(coefficient: BigUint, exponent: i32, dropped: u32) -> (BigUint, i32) {
    if dropped == 0 {
        return (coefficient, exponent);
    }
    let divisor = ten_to(dropped);
    let (mut quotient, rest) = (&coefficient / &divisor, &coefficient % &divisor);
    let twice = rest * 2_u32;
    if twice > divisor || twice == divisor && quotient.bit(0) {
        quotient += 1_u32;
    }
    (quotient, exponent + i32::try_from(dropped).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        let decimal: bson::Decimal128 = text.parse().unwrap();
        Decimal::of_bits(u128::from_le_bytes(decimal.bytes()))
    }

    fn text(decimal: &Decimal) -> String {
        bson::Decimal128::from_bytes(decimal.to_bits().to_le_bytes()).to_string()
    }

    #[test]
    fn sums_and_products_have_34_digits() {
        let nines = "9999999999999999999999999999999999";
        for (one, other, sum, product) in [
            ("1.5", "2.25", "3.75", "3.375"),
            ("-1", "1", "0", "-1"),
            (nines, "1", "1.000000000000000000000000000000000E+34", nines),
            (
                nines,
                "0.5",
                "1.000000000000000000000000000000000E+34",
                "5000000000000000000000000000000000",
            ),
            ("1E+6144", "9E+6144", "Infinity", "Infinity"),
            ("1E-6176", "0.5", "0.5000000000000000000000000000000000", "0E-6176"),
            ("3E-6176", "0.5", "0.5000000000000000000000000000000000", "2E-6176"),
            ("Infinity", "-Infinity", "NaN", "-Infinity"),
            ("Infinity", "0", "Infinity", "NaN"),
            ("NaN", "1", "NaN", "NaN"),
        ] {
            let (one, other) = (decimal(one), decimal(other));
            assert_eq!(text(&one.plus(&other)), sum, "{one:?} + {other:?}");
            assert_eq!(text(&one.times(&other)), product, "{one:?} * {other:?}");
            assert_eq!(one.plus(&other), other.plus(&one));
            assert_eq!(one.times(&other), other.times(&one));
        }
    }

    #[test]
    fn a_double_has_15_digits() {
        for (double, expected) in [
            (0.1, "0.100000000000000"),
            (0.1 + 0.2, "0.300000000000000"),
            (999_999.999_999_999_9, "1000000.00000000"),
            (9_007_199_254_740_993.0, "9.00719925474099E+15"),
            (f64::MAX, "1.79769313486232E+308"),
            (f64::from_bits(1), "4.94065645841247E-324"),
            (-2.5, "-2.50000000000000"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(text(&Decimal::of_double(double)), expected, "{double}");
        }
    }
}
