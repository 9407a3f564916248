//! Computes the value that `$inc`, `$mul`, `$min` or `$max` gives a field, as the server does.
//!
//! The new value is exactly the server's, its type included, but for the form of a Decimal128 ([`super::decimal`]). A wrong one
//! would reserve another key than the document gets. `tests/writes/arithmetic.rs` compares it with a server's.

use std::cmp::Ordering;

use bson::spec::ElementType;

use super::decimal::Decimal;
use crate::constraint::compare;
use crate::raw::Element;

/// An operator that computes a field's new value from the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputingOperator {
    /// `$inc`.
    Add,
    /// `$mul`.
    Multiply,
    /// `$min`.
    Least,
    /// `$max`.
    Greatest,
}

/// A computed value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputedValue {
    /// The BSON type.
    pub kind: ElementType,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl ComputingOperator {
    /// The operator with this name.
    pub fn named(name: &[u8]) -> Option<ComputingOperator> {
        Some(match name {
            b"$inc" => ComputingOperator::Add,
            b"$mul" => ComputingOperator::Multiply,
            b"$min" => ComputingOperator::Least,
            b"$max" => ComputingOperator::Greatest,
            _ => return None,
        })
    }

    /// Whether Keyward can compute the new value from any old value.
    pub fn takes(self, operand: &Element<'_>) -> bool {
        match self {
            ComputingOperator::Add | ComputingOperator::Multiply => operand.is_number(),
            ComputingOperator::Least | ComputingOperator::Greatest => {
                operand.is_number()
                    || matches!(
                        operand.kind,
                        ElementType::String | ElementType::ObjectId | ElementType::Boolean | ElementType::DateTime
                    )
            }
        }
    }

    /// The new value of a field with the value `old`, which is absent if the document has no such field. `None` if the server
    /// refuses the statement.
    pub fn apply(self, old: Option<&Element<'_>>, operand: &Element<'_>) -> Option<ComputedValue> {
        Some(match (self, old) {
            (ComputingOperator::Add, None) => ComputedValue::of(operand),
            (ComputingOperator::Add, Some(old)) => Arithmetic::of(operand)?.plus(Arithmetic::of(old)?)?.value(),
            (ComputingOperator::Multiply, old) => {
                let old = old.map_or(Some(Arithmetic::Int32(0)), Arithmetic::of)?;
                Arithmetic::of(operand)?.times(old)?.value()
            }
            (ComputingOperator::Least, old) => ComputedValue::of(chosen(old, operand, Ordering::Less)?),
            (ComputingOperator::Greatest, old) => ComputedValue::of(chosen(old, operand, Ordering::Greater)?),
        })
    }
}

/// The operand if it compares so with the old value, else the old value.
fn chosen<'e>(old: Option<&'e Element<'e>>, operand: &'e Element<'e>, wanted: Ordering) -> Option<&'e Element<'e>> {
    let Some(old) = old else { return Some(operand) };
    Some(match compare(operand, old)? == wanted {
        true => operand,
        false => old,
    })
}

impl ComputedValue {
    fn of(element: &Element<'_>) -> ComputedValue {
        ComputedValue {
            kind: element.kind,
            bytes: element.value.to_vec(),
        }
    }
}

/// A number with its type, which decides how the server computes with it.
enum Arithmetic {
    Int32(i32),
    Int64(i64),
    Double(f64),
    Decimal(Decimal),
}

impl Arithmetic {
    fn of(element: &Element<'_>) -> Option<Arithmetic> {
        Some(match element.kind {
            ElementType::Int32 => Arithmetic::Int32(i32::from_le_bytes(*element.value.first_chunk()?)),
            ElementType::Int64 => Arithmetic::Int64(i64::from_le_bytes(*element.value.first_chunk()?)),
            ElementType::Double => Arithmetic::Double(f64::from_le_bytes(*element.value.first_chunk()?)),
            ElementType::Decimal128 => {
                let bits = u128::from_le_bytes(*element.value.first_chunk()?);
                Arithmetic::Decimal(Decimal::of_bits(bits))
            }
            _ => return None,
        })
    }

    /// The sum; `None` if it is too large.
    fn plus(self, other: Arithmetic) -> Option<Arithmetic> {
        self.combined(other, i64::checked_add, |one, other| one + other, Decimal::plus)
    }

    /// The product; `None` if it is too large.
    fn times(self, other: Arithmetic) -> Option<Arithmetic> {
        self.combined(other, i64::checked_mul, |one, other| one * other, Decimal::times)
    }

    fn combined(
        self,
        other: Arithmetic,
        whole: fn(i64, i64) -> Option<i64>,
        double: fn(f64, f64) -> f64,
        decimal: fn(&Decimal, &Decimal) -> Decimal,
    ) -> Option<Arithmetic> {
        Some(match (self, other) {
            (Arithmetic::Int32(one), Arithmetic::Int32(other)) => {
                let result = whole(one.into(), other.into())?;
                i32::try_from(result).map_or(Arithmetic::Int64(result), Arithmetic::Int32)
            }
            (one @ Arithmetic::Decimal(_), other) | (one, other @ Arithmetic::Decimal(_)) => {
                Arithmetic::Decimal(decimal(&one.decimal(), &other.decimal()))
            }
            (one @ Arithmetic::Double(_), other) | (one, other @ Arithmetic::Double(_)) => {
                Arithmetic::Double(double(one.double(), other.double()))
            }
            (one, other) => Arithmetic::Int64(whole(one.whole(), other.whole())?),
        })
    }

    fn whole(&self) -> i64 {
        match self {
            Arithmetic::Int32(number) => (*number).into(),
            Arithmetic::Int64(number) => *number,
            Arithmetic::Double(_) | Arithmetic::Decimal(_) => unreachable!("it is no whole number's type"),
        }
    }

    fn double(&self) -> f64 {
        match self {
            Arithmetic::Double(number) => *number,
            // To the nearest one, as the server rounds it.
            other => other.whole() as f64,
        }
    }

    fn decimal(self) -> Decimal {
        match self {
            Arithmetic::Decimal(number) => number,
            Arithmetic::Double(number) => Decimal::of_double(number),
            other => Decimal::whole(other.whole()),
        }
    }

    fn value(self) -> ComputedValue {
        let (kind, bytes) = match self {
            Arithmetic::Int32(number) => (ElementType::Int32, number.to_le_bytes().to_vec()),
            Arithmetic::Int64(number) => (ElementType::Int64, number.to_le_bytes().to_vec()),
            Arithmetic::Double(number) => (ElementType::Double, number.to_le_bytes().to_vec()),
            Arithmetic::Decimal(number) => (ElementType::Decimal128, number.to_bits().to_le_bytes().to_vec()),
        };
        ComputedValue { kind, bytes }
    }
}
