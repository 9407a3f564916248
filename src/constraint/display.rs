//! Decides whether the server can name a key in an error without breaking a character.
//!
//! The server cuts long strings by bytes, and copies invalid UTF-8 unchanged. A driver can't read a reply with such
//! text. One such key would therefore hide the results of all other keys in the same reply. If two keys are equal, both
//! or neither can be displayed: only their text counts, and text is compared by its bytes.

use bson::spec::ElementType;

use crate::raw::{Doc, Element};

/// The server cuts text of 160 bytes and more. Text shorter than this constant is never cut, whatever its kind.
const CUT_BYTES_MIN: usize = 150;

/// Whether all text in `values` is UTF-8 and stays so when it is cut.
pub(super) fn is_displayable(values: Doc<'_>) -> bool {
    values.elements().all(|element| {
        element.is_ok_and(|element| std::str::from_utf8(element.name).is_ok() && is_displayable_value(&element))
    })
}

fn is_displayable_value(element: &Element<'_>) -> bool {
    match element.kind {
        ElementType::EmbeddedDocument => Doc::new(element.value).is_ok_and(is_displayable),
        // The server doesn't print the names in an array.
        ElementType::Array => Doc::new(element.value).is_ok_and(|array| {
            array
                .elements()
                .all(|element| element.is_ok_and(|element| is_displayable_value(&element)))
        }),
        // Skip the length before the text.
        ElementType::String | ElementType::Symbol | ElementType::JavaScriptCode => {
            element.value.get(4..).is_some_and(is_text)
        }
        ElementType::DbPointer => element
            .value
            .get(4..element.value.len().saturating_sub(12))
            .is_some_and(is_text),
        ElementType::JavaScriptCodeWithScope => is_displayable_code(element.value),
        ElementType::RegularExpression => is_text(element.value),
        _ => true,
    }
}

/// `value` is an int32 with the whole length, the code as a string, and the scope.
fn is_displayable_code(value: &[u8]) -> bool {
    let Some((length, rest)) = value.get(4..).and_then(|rest| rest.split_first_chunk::<4>()) else {
        return false;
    };
    let Ok(length) = usize::try_from(i32::from_le_bytes(*length)) else {
        return false;
    };
    let code = rest.get(..length).is_some_and(is_text);
    code && rest
        .get(length..)
        .is_some_and(|scope| Doc::new(scope).is_ok_and(is_displayable))
}

fn is_text(bytes: &[u8]) -> bool {
    match bytes.len() < CUT_BYTES_MIN {
        true => std::str::from_utf8(bytes).is_ok(),
        false => bytes.is_ascii(),
    }
}

#[cfg(test)]
mod tests {
    use bson::{Bson, JavaScriptCodeWithScope, doc};

    use super::*;
    use crate::raw::Builder;

    fn display(value: impl Into<Bson>) -> bool {
        let document = doc! { "v": value.into() }.to_vec().unwrap();
        is_displayable(Doc::new(&document).unwrap())
    }

    #[test]
    fn a_value_that_is_cut_must_be_ascii() {
        assert!(display("é".repeat(70)));
        assert!(!display("é".repeat(80)));
        assert!(display("e".repeat(5_000)));
        assert!(!display(doc! { "a": ["x", { "b": "é".repeat(80) }] }));
        assert!(!display(Bson::Symbol("é".repeat(80))));
        let scope = |text: &str| JavaScriptCodeWithScope {
            code: "f()".to_owned(),
            scope: doc! { "s": text },
        };
        assert!(display(scope("é")));
        assert!(!display(scope(&"é".repeat(80))));
    }

    #[test]
    fn text_that_is_not_utf_8_is_not_displayed() {
        let mut document = Builder::new();
        document.string("v", b"\xff");
        assert!(!is_displayable(Doc::new(&document.finish()).unwrap()));
    }
}
