//! Turns BSON's four kinds of numbers into bytes that compare as the server compares the numbers.
//!
//! Equal numbers give equal bytes whatever their types. The comparison is exact: no number is rounded. A double stands
//! for its binary fraction, a Decimal128 for its decimal fraction. So 0.1 and Decimal128 0.1 differ, while 0.5 and
//! Decimal128 0.50 are equal.
//!
//! The bytes are:
//! 1. The class: NaN < negative < zero < positive. NaN and zero have no other bytes.
//! 2. The greatest double that is not above the number's magnitude, big-endian.
//! 3. 0 if that double equals the magnitude; otherwise 1 and the magnitude as a decimal (exponent, then 34 digits).
//!
//! For a negative number, all bytes except the class are inverted.

use std::cmp::Ordering;

use bson::spec::ElementType;
use num_bigint::BigUint;

use crate::raw::{COEFFICIENT_LIMIT, Element, decimal_coefficient, mantissa_and_exponent};

const NAN: u8 = 1;
const NEGATIVE: u8 = 2;
const ZERO: u8 = 3;
const POSITIVE: u8 = 4;

/// A number, independent of its BSON type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    Nan,
    /// A double, zeros and infinities included.
    Double(f64),
    Whole(i64),
    Decimal {
        negative: bool,
        coefficient: u128,
        exponent: i32,
    },
}

impl Number {
    /// The number in `element`, if it holds one.
    pub(super) fn of(element: &Element<'_>) -> Option<Number> {
        Some(match element.kind {
            ElementType::Double => match f64::from_le_bytes(*element.value.first_chunk()?) {
                number if number.is_nan() => Number::Nan,
                number => Number::Double(number),
            },
            ElementType::Int32 => Number::Whole(i32::from_le_bytes(*element.value.first_chunk()?).into()),
            ElementType::Int64 => Number::Whole(i64::from_le_bytes(*element.value.first_chunk()?)),
            ElementType::Decimal128 => decimal(u128::from_le_bytes(*element.value.first_chunk()?)),
            _ => return None,
        })
    }

    pub(super) fn is_zero(self) -> bool {
        match self {
            Number::Nan => false,
            Number::Double(number) => number == 0.0,
            Number::Whole(number) => number == 0,
            Number::Decimal { coefficient, .. } => coefficient == 0,
        }
    }

    pub(super) fn is_equal_to(self, whole: i64) -> bool {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        self.append_ordered(&mut left);
        Number::Whole(whole).append_ordered(&mut right);
        left == right
    }

    pub(super) fn is_negative(self) -> bool {
        match self {
            Number::Nan => false,
            Number::Double(number) => number < 0.0,
            Number::Whole(number) => number < 0,
            Number::Decimal {
                negative, coefficient, ..
            } => negative && coefficient != 0,
        }
    }

    /// Appends the bytes that the module's documentation describes.
    pub(super) fn append_ordered(self, out: &mut Vec<u8>) {
        let (negative, magnitude) = match self {
            Number::Nan => return out.push(NAN),
            Number::Double(number) => (number.is_sign_negative(), Magnitude::of_double(number.abs())),
            Number::Whole(number) => (number < 0, Magnitude::of_decimal(number.unsigned_abs().into(), 0)),
            Number::Decimal {
                negative,
                coefficient,
                exponent,
            } => (negative, Magnitude::of_decimal(coefficient, exponent)),
        };
        if magnitude.is_zero() {
            return out.push(ZERO);
        }
        out.push(if negative { NEGATIVE } else { POSITIVE });
        let start = out.len();
        magnitude.append(out);
        if negative {
            out[start..].iter_mut().for_each(|byte| *byte = !*byte);
        }
    }
}

/// The number that a Decimal128's bits encode. An encoding with a coefficient of more than 34 digits is a zero.
fn decimal(bits: u128) -> Number {
    let negative = bits >> 127 == 1;
    match (decimal_coefficient(bits), (bits >> 122) & 0x1f) {
        (Some(coefficient), _) => Number::Decimal {
            negative,
            coefficient,
            exponent: ((bits >> 113) & 0x3fff) as i32 - 6176,
        },
        (None, 0x1f) => Number::Nan,
        (None, _) if negative => Number::Double(f64::NEG_INFINITY),
        (None, _) => Number::Double(f64::INFINITY),
    }
}

/// The Decimal128 that the server makes of these bits when it stores a key. It has one NaN and one of each infinity. An
/// encoding with more than 34 digits becomes zero.
pub(super) fn plain_decimal(bits: u128) -> u128 {
    let sign = bits & (1 << 127);
    match (bits >> 122) & 0x1f {
        0x1f => 0x1f << 122,
        0x1e => sign | 0x1e << 122,
        0x18.. => sign | (bits >> 111 & 0x3fff) << 113,
        _ if decimal_coefficient(bits) == Some(0) => bits >> 113 << 113,
        _ => bits,
    }
}

/// A number without its sign: the greatest double not above it and, unless they are equal, the number's digits.
#[derive(Debug, Clone, Copy)]
struct Magnitude {
    floor: f64,
    /// The coefficient padded to 34 digits, and its exponent.
    beyond: Option<(u128, i32)>,
}

impl Magnitude {
    fn of_double(number: f64) -> Self {
        Magnitude {
            floor: number,
            beyond: None,
        }
    }

    fn of_decimal(coefficient: u128, exponent: i32) -> Self {
        let (coefficient, exponent) = without_trailing_zeros(coefficient, exponent);
        if coefficient < 1 << 53 && exponent == 0 {
            return Magnitude::of_double(coefficient as f64);
        }
        let nearest = nearest_double(coefficient, exponent);
        let floor = match compare(nearest, coefficient, exponent) {
            Ordering::Equal => return Magnitude::of_double(nearest),
            Ordering::Less => nearest,
            Ordering::Greater => nearest.next_down(),
        };
        Magnitude {
            floor,
            beyond: Some(filled_up(coefficient, exponent)),
        }
    }

    fn is_zero(self) -> bool {
        self.floor == 0.0 && self.beyond.is_none()
    }

    fn append(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.floor.to_bits().to_be_bytes());
        match self.beyond {
            None => out.push(0),
            Some((coefficient, exponent)) => {
                out.push(1);
                // Exponents lie between -6209 and 6144. Shifted, they are positive, so their bytes have the same order.
                out.extend_from_slice(&((exponent + 0x4000) as u16).to_be_bytes());
                out.extend_from_slice(&coefficient.to_be_bytes());
            }
        }
    }
}

/// The same number in one form, so that equal numbers have equal parts. A whole number below 10^34 has the exponent
/// zero. A larger one has 34 digits. A fraction's coefficient has no zero at its end.
fn without_trailing_zeros(mut coefficient: u128, mut exponent: i32) -> (u128, i32) {
    if coefficient == 0 {
        return (0, 0);
    }
    while coefficient.is_multiple_of(10) && exponent != 0 {
        coefficient /= 10;
        exponent += 1;
    }
    while exponent > 0 && coefficient < COEFFICIENT_LIMIT / 10 {
        coefficient *= 10;
        exponent -= 1;
    }
    (coefficient, exponent)
}

/// The same number with 34 digits.
fn filled_up(mut coefficient: u128, mut exponent: i32) -> (u128, i32) {
    while coefficient < COEFFICIENT_LIMIT / 10 {
        coefficient *= 10;
        exponent -= 1;
    }
    (coefficient, exponent)
}

/// The double nearest to `coefficient` * 10^`exponent`; infinite above the greatest one.
fn nearest_double(coefficient: u128, exponent: i32) -> f64 {
    if exponent == 0 {
        return coefficient as f64;
    }
    format!("{coefficient}e{exponent}")
        .parse()
        .expect("digits, an e and an exponent are a number")
}

/// Compares `double`, not negative, with `coefficient` * 10^`exponent`, exactly.
fn compare(double: f64, coefficient: u128, exponent: i32) -> Ordering {
    if double.is_infinite() {
        return Ordering::Greater;
    }
    let (mantissa, binary_exponent) = mantissa_and_exponent(double);
    // The double is zero: the result is known without building the power of ten, which could be huge.
    if mantissa == 0 {
        return 0.cmp(&coefficient);
    }
    let (mut left, mut right) = (BigUint::from(mantissa), BigUint::from(coefficient));
    match binary_exponent >= 0 {
        true => left <<= binary_exponent.unsigned_abs(),
        false => right <<= binary_exponent.unsigned_abs(),
    }
    let ten = BigUint::from(10_u32).pow(exponent.unsigned_abs());
    match exponent >= 0 {
        true => right *= ten,
        false => left *= ten,
    }
    left.cmp(&right)
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Decimal128};

    use super::*;
    use crate::raw::Doc;

    fn ordered(value: impl Into<Bson>) -> Vec<u8> {
        let bytes = bson::doc! { "": value.into() }.to_vec().unwrap();
        let element = Doc::new(&bytes).unwrap().elements().next().unwrap().unwrap();
        let mut out = Vec::new();
        Number::of(&element).unwrap().append_ordered(&mut out);
        out
    }

    fn dec(text: &str) -> Bson {
        Bson::Decimal128(text.parse().unwrap())
    }

    #[test]
    fn equal_numbers_of_all_types_have_equal_bytes() {
        let classes: Vec<Vec<Bson>> = vec![
            vec![1.into(), 1_i64.into(), 1.0.into(), dec("1"), dec("1.00"), dec("10E-1")],
            vec![
                0.into(),
                0.0.into(),
                (-0.0).into(),
                dec("0"),
                dec("-0"),
                dec("0E+3"),
                dec("0E-6176"),
            ],
            vec![f64::NAN.into(), (-f64::NAN).into(), dec("NaN"), dec("-NaN")],
            vec![f64::INFINITY.into(), dec("Infinity")],
            vec![f64::NEG_INFINITY.into(), dec("-Infinity")],
            vec![0.5.into(), dec("0.5"), dec("0.50000")],
            vec![(-3.75).into(), dec("-3.75"), dec("-37500E-4")],
            vec![
                9007199254740993_i64.into(),
                dec("9007199254740993"),
                dec("9007199254740993.00"),
            ],
            vec![i64::MAX.into(), dec("9223372036854775807")],
            vec![(i64::MAX as f64).into(), dec("9223372036854775808")],
            vec![i64::MIN.into(), (i64::MIN as f64).into(), dec("-9223372036854775808.0")],
            vec![1e22.into(), dec("1E+22"), dec("10000000000000000000000")],
            vec![2_f64.powi(-40).into(), dec("9.094947017729282379150390625E-13")],
            vec![
                1e15.into(),
                1_000_000_000_000_000_i64.into(),
                dec("1E+15"),
                dec("1.0E+15"),
            ],
        ];
        for class in &classes {
            for value in class {
                assert_eq!(
                    ordered(value.clone()),
                    ordered(class[0].clone()),
                    "{value:?} {:?}",
                    class[0]
                );
            }
        }
        for (i, class) in classes.iter().enumerate() {
            for other in &classes[i + 1..] {
                assert_ne!(ordered(class[0].clone()), ordered(other[0].clone()));
            }
        }
    }

    #[test]
    fn neighbours_stay_in_their_order() {
        let ascending: Vec<Bson> = vec![
            f64::NAN.into(),
            f64::NEG_INFINITY.into(),
            dec("-9E+6111"),
            f64::MIN.into(),
            (-1e308).into(),
            dec("-1E+308"),
            i64::MIN.into(),
            (i64::MIN + 1).into(),
            dec("-9223372036854775806.5"),
            (-1).into(),
            dec("-0.1"),
            (-f64::from_bits(1)).into(),
            dec("-1E-6176"),
            0.into(),
            dec("1E-6176"),
            dec("1E-400"),
            f64::from_bits(1).into(),
            dec("0.1"),
            0.1.into(),
            dec("0.1000000000000000055511151231257828"),
            dec("0.3333333333333333"),
            1.into(),
            9007199254740992_i64.into(),
            dec("9007199254740992.5"),
            9007199254740993_i64.into(),
            9007199254740994.0.into(),
            i64::MAX.into(),
            (i64::MAX as f64).into(),
            dec("99999999999999991611392"),
            dec("99999999999999999999999.5"),
            dec("1E+23"),
            dec("100000000000000000000000.5"),
            dec("1E+308"),
            1e308.into(),
            f64::MAX.into(),
            dec("1.8E+308"),
            dec("1E+6144"),
            f64::INFINITY.into(),
        ];
        for pair in ascending.windows(2) {
            assert!(
                ordered(pair[0].clone()) < ordered(pair[1].clone()),
                "{:?} < {:?}",
                pair[0],
                pair[1]
            );
        }
    }

    #[test]
    fn a_coefficient_of_more_than_34_digits_is_zero() {
        let mut too_large = [0xff; 16];
        (too_large[14], too_large[15]) = (0x0f, 0x30);
        assert_eq!(ordered(Bson::Decimal128(Decimal128::from_bytes(too_large))), ordered(0));
        (too_large[14], too_large[15]) = (0xff, 0x6f);
        assert_eq!(ordered(Bson::Decimal128(Decimal128::from_bytes(too_large))), ordered(0));
    }
}
