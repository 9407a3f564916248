//! Compares BSON numbers of all four types as the server does: by their exact values, NaN below everything.

use std::cmp::Ordering;

use bson::spec::ElementType;

use crate::router::raw::Element;

/// A number's exact value.
#[derive(Debug, Clone, Copy)]
pub enum Number {
    /// Not a number, of any type.
    NaN,
    /// An infinity; `true` is the positive one.
    Infinite(bool),
    /// `coefficient * 2^exponent`.
    Binary {
        negative: bool,
        coefficient: u128,
        exponent: i32,
    },
    /// `coefficient * 10^exponent`.
    Decimal {
        negative: bool,
        coefficient: u128,
        exponent: i32,
    },
}

impl Number {
    /// Reads a numeric element; `None` for every other type.
    pub fn from_element(element: &Element<'_>) -> Option<Self> {
        match element.kind {
            ElementType::Int32 => Some(Self::whole(i32::from_le_bytes(element.value.try_into().ok()?).into())),
            ElementType::Int64 => Some(Self::whole(i64::from_le_bytes(element.value.try_into().ok()?))),
            ElementType::Double => Some(Self::double(f64::from_le_bytes(element.value.try_into().ok()?))),
            ElementType::Decimal128 => Some(Self::decimal(u128::from_le_bytes(element.value.try_into().ok()?))),
            _ => None,
        }
    }

    fn whole(number: i64) -> Self {
        Number::Binary {
            negative: number < 0,
            coefficient: number.unsigned_abs().into(),
            exponent: 0,
        }
    }

    fn double(number: f64) -> Self {
        if number.is_nan() {
            return Number::NaN;
        }
        if number.is_infinite() {
            return Number::Infinite(number > 0.0);
        }
        let bits = number.to_bits();
        let fraction = bits & ((1 << 52) - 1);
        let (coefficient, exponent) = match (bits >> 52) as i32 & 0x7ff {
            0 => (fraction, -1074),
            biased => (fraction | 1 << 52, biased - 1075),
        };
        Number::Binary {
            negative: number < 0.0,
            coefficient: coefficient.into(),
            exponent,
        }
    }

    /// The binary-integer encoding of IEEE 754 decimal128.
    fn decimal(bits: u128) -> Self {
        let negative = bits >> 127 != 0;
        let combination = (bits >> 122) as u32 & 0x1f;
        match combination {
            0x1f => return Number::NaN,
            0x1e => return Number::Infinite(!negative),
            _ => (),
        }
        // A coefficient of the other form is beyond 34 digits, which counts as zero.
        let (exponent, coefficient) = match combination >> 3 {
            3 => ((bits >> 111) as i32 & 0x3fff, 0),
            _ => ((bits >> 113) as i32 & 0x3fff, bits & ((1 << 113) - 1)),
        };
        let coefficient = if coefficient < 10_u128.pow(34) { coefficient } else { 0 };
        Number::Decimal {
            negative,
            coefficient,
            exponent: exponent - 6176,
        }
    }

    /// -1, 0 or 1; NaN is sorted apart.
    fn sign(self) -> i32 {
        match self {
            Number::NaN => 0,
            Number::Infinite(positive) => {
                if positive {
                    1
                } else {
                    -1
                }
            }
            Number::Binary { coefficient: 0, .. } | Number::Decimal { coefficient: 0, .. } => 0,
            Number::Binary { negative, .. } | Number::Decimal { negative, .. } => {
                if negative {
                    -1
                } else {
                    1
                }
            }
        }
    }

    /// The position of the highest bit, to within one or two: enough to tell apart what differs greatly.
    fn magnitude(self) -> f64 {
        match self {
            Number::Binary {
                coefficient, exponent, ..
            } => (coefficient as f64).log2() + f64::from(exponent),
            Number::Decimal {
                coefficient, exponent, ..
            } => (coefficient as f64).log2() + f64::from(exponent) * std::f64::consts::LOG2_10,
            _ => f64::INFINITY,
        }
    }

    /// The whole part as an int64, as the server's hash sees it: doubles cut off, decimals rounded half to even, both
    /// held within an int64.
    pub fn for_hash(self) -> i64 {
        match self {
            Number::NaN => 0,
            Number::Infinite(positive) => {
                if positive {
                    i64::MAX
                } else {
                    i64::MIN
                }
            }
            Number::Binary {
                negative,
                coefficient,
                exponent,
            } => {
                let whole = match exponent {
                    0.. => coefficient
                        .checked_shl(exponent.unsigned_abs().min(127))
                        .filter(|_| exponent < 64),
                    _ => Some(coefficient.checked_shr(exponent.unsigned_abs()).unwrap_or(0)),
                };
                // The double just past the largest int64 has always hashed as the smallest.
                if whole == Some(1 << 63) && !negative {
                    return i64::MIN;
                }
                clamp(negative, whole.unwrap_or(u128::MAX))
            }
            Number::Decimal {
                negative,
                coefficient,
                exponent,
            } => clamp(negative, round_decimal(coefficient, exponent)),
        }
    }
}

fn round_decimal(coefficient: u128, exponent: i32) -> u128 {
    let power = 10_u128.checked_pow(exponent.unsigned_abs());
    match (exponent, power) {
        (0.., Some(power)) => coefficient.saturating_mul(power),
        (0.., None) if coefficient == 0 => 0,
        (0.., None) => u128::MAX,
        (_, None) => 0,
        (_, Some(power)) => {
            let (whole, rest) = (coefficient / power, coefficient % power);
            let up = match (rest * 2).cmp(&power) {
                Ordering::Less => false,
                Ordering::Equal => whole % 2 == 1,
                Ordering::Greater => true,
            };
            whole + u128::from(up)
        }
    }
}

fn clamp(negative: bool, whole: u128) -> i64 {
    match i64::try_from(whole) {
        Ok(whole) if negative => -whole,
        Ok(whole) => whole,
        Err(_) if negative => i64::MIN,
        Err(_) => i64::MAX,
    }
}

/// The server's order of two numbers.
pub fn compare(left: Number, right: Number) -> Ordering {
    match (left, right) {
        (Number::NaN, Number::NaN) => return Ordering::Equal,
        (Number::NaN, _) => return Ordering::Less,
        (_, Number::NaN) => return Ordering::Greater,
        _ => (),
    }
    let signs = left.sign().cmp(&right.sign());
    if signs != Ordering::Equal || left.sign() == 0 {
        return signs;
    }
    let magnitudes = compare_magnitudes(left, right);
    if left.sign() < 0 {
        magnitudes.reverse()
    } else {
        magnitudes
    }
}

fn compare_magnitudes(left: Number, right: Number) -> Ordering {
    let (left_bits, right_bits) = (left.magnitude(), right.magnitude());
    if left_bits.is_infinite() || right_bits.is_infinite() || (left_bits - right_bits).abs() > 2.0 {
        return left_bits.total_cmp(&right_bits);
    }
    // Near each other: exact. Powers in a denominator multiply the other side instead.
    let (mut left_side, mut right_side) = (Big::new(left), Big::new(right));
    scale(left, &mut left_side, &mut right_side);
    scale(right, &mut right_side, &mut left_side);
    left_side.compare(&right_side)
}

fn scale(number: Number, own: &mut Big, other: &mut Big) {
    let (base, exponent) = match number {
        Number::Binary { exponent, .. } => (2, exponent),
        Number::Decimal { exponent, .. } => (10, exponent),
        _ => return,
    };
    let side = if exponent > 0 { own } else { other };
    for _ in 0..exponent.unsigned_abs() {
        side.multiply(base);
    }
}

/// A natural number of any size, lowest digits first.
struct Big(Vec<u32>);

impl Big {
    fn new(number: Number) -> Self {
        let coefficient = match number {
            Number::Binary { coefficient, .. } | Number::Decimal { coefficient, .. } => coefficient,
            _ => 0,
        };
        Big((0..4).map(|digit| (coefficient >> (32 * digit)) as u32).collect())
    }

    fn multiply(&mut self, factor: u64) {
        let mut carry = 0;
        for digit in &mut self.0 {
            let product = u64::from(*digit) * factor + carry;
            *digit = product as u32;
            carry = product >> 32;
        }
        if carry != 0 {
            self.0.push(carry as u32);
        }
    }

    fn compare(&self, other: &Big) -> Ordering {
        let digits = self.0.len().max(other.0.len());
        let digit = |big: &Big, position: usize| big.0.get(position).copied().unwrap_or(0);
        (0..digits)
            .rev()
            .map(|position| digit(self, position).cmp(&digit(other, position)))
            .find(|order| *order != Ordering::Equal)
            .unwrap_or(Ordering::Equal)
    }
}
