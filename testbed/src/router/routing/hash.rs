//! The server's hash of a value for hashed shard keys (`BSONElementHasher::hash64`, seed 0): the first eight bytes of an
//! MD5 over the value's type rank and bytes, numbers taken as int64.

use bson::spec::ElementType;
use md5::{Digest, Md5};

use super::number::Number;
use super::order::canonical_type;
use crate::router::raw::{Doc, Element};

/// The hash of a value; its field name doesn't count.
pub fn hash64(element: &Element<'_>) -> i64 {
    let mut hasher = Md5::new();
    hasher.update(0_i32.to_le_bytes());
    add(&mut hasher, element, false);
    let digest = hasher.finalize();
    digest.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

fn add(hasher: &mut Md5, element: &Element<'_>, with_name: bool) {
    hasher.update(canonical_type(element.kind).to_le_bytes());
    if with_name {
        hasher.update(element.name);
        hasher.update([0]);
    }
    if let Some(number) = Number::from_element(element) {
        hasher.update(number.for_hash().to_le_bytes());
        return;
    }
    match element.kind {
        ElementType::EmbeddedDocument | ElementType::Array => add_nested(hasher, element.value),
        ElementType::JavaScriptCodeWithScope => {
            let code = element.value.get(4..8).and_then(|size| size.first_chunk::<4>());
            let code_end = 8 + code.map_or(0, |size| i32::from_le_bytes(*size) as usize);
            // The code with its terminating zero.
            hasher.update(element.value.get(8..code_end).unwrap_or_default());
            add_nested(hasher, element.value.get(code_end..).unwrap_or_default());
        }
        _ => hasher.update(element.value),
    }
}

fn add_nested(hasher: &mut Md5, bytes: &[u8]) {
    if let Ok(document) = Doc::new(bytes) {
        for element in document.elements().flatten() {
            add(hasher, &element, true);
        }
    }
    // The end of a document counts as an element of rank 0 with neither name nor value.
    hasher.update(0_i32.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use bson::{Bson, doc};

    use super::*;

    fn hash(value: impl Into<Bson>) -> i64 {
        let bytes = doc! { "v": value.into() }.to_vec().unwrap();
        hash64(&Doc::new(&bytes).unwrap().get("v").unwrap().unwrap())
    }

    #[test]
    fn agrees_with_values_that_the_server_gave() {
        // The first is the server's own start-up check, the others were read from `_hashBSONElement`.
        assert_eq!(hash(42), -944_302_157_085_130_861);
        assert_eq!(hash("abc"), 8_478_485_326_885_698_097);
        assert_eq!(hash(doc! {}), 7_980_500_913_326_740_417);
        assert_eq!(
            hash(doc! { "a": { "b": [1, { "c": 2.5 }] } }),
            8_075_102_958_336_324_603
        );
        let scope = doc! { "x": 1 };
        let code = bson::JavaScriptCodeWithScope {
            code: "f()".into(),
            scope,
        };
        assert_eq!(hash(code), 6_870_062_974_008_839_936);
        assert_eq!(hash(9_223_372_036_854_775_808.0), 4_532_067_210_535_695_462);
        assert_eq!(hash(f64::INFINITY), 921_523_596_458_303_250);
        assert_eq!(hash(42_i64), hash(42.9));
        assert_eq!(hash(Bson::Decimal128("3.75".parse().unwrap())), hash(4));
    }
}
