//! Extracts the tuples of values that a document has for an index.
//!
//! It gives one tuple for each key, exactly as the server's `BtreeKeyGenerator` does. An array along a path gives one
//! tuple for each element. At most one array may be expanded. A numeric path component may mean a position. Values are
//! not compared: equal tuples may come out more than once.
//! Source: mongodb/mongo `src/mongo/db/index/btree_key_generator.cpp`; measured on 6.0.5.

use bson::spec::ElementType;

use super::KeyError;
use crate::raw::{Doc, Element, Malformed};

/// The value in a tuple for a path that leads nowhere.
const NULL: Element<'static> = Element {
    kind: ElementType::Null,
    name: b"",
    value: b"",
};
/// The value in a tuple for an array without elements.
const UNDEFINED: Element<'static> = Element {
    kind: ElementType::Undefined,
    name: b"",
    value: b"",
};

/// One indexed path while a document is walked.
#[derive(Debug, Clone, Copy)]
struct WalkedPath<'p, 'd> {
    /// The rest of the path; empty once `value` is complete.
    rest: &'p str,
    value: Element<'d>,
}

/// A path that continues after an array with the name of one of the array's elements, usually a position.
#[derive(Debug, Clone, Copy)]
struct Positional<'p, 'd> {
    array: Doc<'d>,
    element: Element<'d>,
    /// The element that the path finds if the array is read as a document; `rest` is then the rest of the path.
    found: Option<Element<'d>>,
    rest: &'p str,
}

/// Walks one document for one index.
struct Extraction<'f, F> {
    sparse: bool,
    steps: Steps<'f>,
    emit: &'f mut F,
}

/// The most steps that an extraction may take. A position in a path leads into its array once for each element beside it. A sparse index gives
/// no key for a place without a value. So without a limit, a small document could take very long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps<'f> {
    /// How many are left.
    pub left: usize,
    /// The constraint's name, for the error.
    pub constraint: &'f str,
}

/// Calls `emit` with the values of every key that `document` has in the index on `paths`, in no particular order.
///
/// # Errors
/// The error with which the server refuses the document, or the error of `emit`.
pub(super) fn extract<'p, 'd, F>(
    paths: impl Iterator<Item = &'p str>,
    sparse: bool,
    document: Doc<'d>,
    steps: Steps<'_>,
    emit: &mut F,
) -> Result<(), KeyError>
where
    F: FnMut(&mut dyn Iterator<Item = Element<'d>>) -> Result<(), KeyError>,
{
    let fields: Vec<_> = paths
        .map(|path| WalkedPath {
            rest: path,
            value: NULL,
        })
        .collect();
    let mut extraction = Extraction { sparse, steps, emit };
    extraction.walk(fields, Some(document), 0, &[])
}

impl<F> Extraction<'_, F> {
    /// Takes one step: completes each field whose path ends in `document`, then enters the array on the way, if any.
    fn walk<'p, 'd>(
        &mut self,
        mut fields: Vec<WalkedPath<'p, 'd>>,
        document: Option<Doc<'d>>,
        mut not_found: usize,
        positions: &[Option<Positional<'p, 'd>>],
    ) -> Result<(), KeyError>
    where
        F: FnMut(&mut dyn Iterator<Item = Element<'d>>) -> Result<(), KeyError>,
    {
        self.steps.left = self.steps.left.checked_sub(1).ok_or_else(|| KeyError::TooManyPlaces {
            constraint: self.steps.constraint.to_owned(),
        })?;
        let mut array: Option<Element<'d>> = None;
        let mut through_array = vec![];
        let mut expands_nested = true;
        for (index, field) in fields.iter_mut().enumerate() {
            if field.rest.is_empty() {
                continue;
            }
            let (found, array_in_array) = next_element(document, positions.get(index), &mut field.rest)?;
            match found {
                None => {
                    *field = WalkedPath { rest: "", value: NULL };
                    not_found += 1;
                }
                Some(element) if element.kind == ElementType::Array => {
                    through_array.push(index);
                    match array {
                        Some(earlier) if !std::ptr::eq(earlier.value, element.value) => {
                            return Err(KeyError::ParallelArrays {
                                later: element.name.to_owned(),
                                earlier: earlier.name.to_owned(),
                            });
                        }
                        _ => array = Some(element),
                    }
                    expands_nested &= !array_in_array;
                }
                Some(element) => field.value = element,
            }
        }
        match array {
            None if self.sparse && not_found == fields.len() => Ok(()),
            None => (self.emit)(&mut fields.iter().map(|field| field.value)),
            Some(array) => self.expand(&fields, array, &through_array, expands_nested, not_found),
        }
    }

    /// Continues from each element of `array`. The paths in `through_array` lead through that array.
    fn expand<'p, 'd>(
        &mut self,
        fields: &[WalkedPath<'p, 'd>],
        array: Element<'d>,
        through_array: &[usize],
        expands_nested: bool,
        not_found: usize,
    ) -> Result<(), KeyError>
    where
        F: FnMut(&mut dyn Iterator<Item = Element<'d>>) -> Result<(), KeyError>,
    {
        let elements = Doc::new(array.value)?;
        let step_into = |element: Element<'d>, whole_element: bool| {
            let mut fields = fields.to_vec();
            for index in through_array {
                if fields[*index].rest.is_empty() {
                    fields[*index].value = if whole_element { element } else { array };
                }
            }
            fields
        };
        if elements.is_empty() {
            return self.walk(step_into(UNDEFINED, true), None, not_found, &[]);
        }
        let mut positions = Vec::with_capacity(fields.len());
        for field in fields {
            positions.push(match field.rest {
                "" => None,
                rest => Positional::of(elements, rest)?,
            });
        }
        for element in elements.elements() {
            let element = element?;
            let document = element.as_document()?;
            self.walk(step_into(element, expands_nested), document, not_found, &positions)?;
        }
        Ok(())
    }
}

impl<'p, 'd> Positional<'p, 'd> {
    fn of(array: Doc<'d>, mut rest: &'p str) -> Result<Option<Self>, KeyError> {
        let Some(element) = array.get(split_path(rest).0)? else {
            return Ok(None);
        };
        let found = element_or_array(array, &mut rest)?;
        Ok(Some(Positional {
            array,
            element,
            found,
            rest,
        }))
    }
}

/// Finds the next element on the path `rest`, and shortens `rest` to the remaining path.
///
/// It searches `document` if that has the path's first component, otherwise the array's position. The second part of
/// the result is whether the position holds an array.
fn next_element<'p, 'd>(
    document: Option<Doc<'d>>,
    position: Option<&Option<Positional<'p, 'd>>>,
    rest: &mut &'p str,
) -> Result<(Option<Element<'d>>, bool), KeyError> {
    let Some(Some(position)) = position else {
        let found = document.map(|document| element_or_array(document, rest)).transpose()?;
        return Ok((found.flatten(), false));
    };
    match document
        .map(|document| document.get(split_path(rest).0))
        .transpose()?
        .flatten()
    {
        Some(_) => Err(KeyError::AmbiguousField {
            field: position.element.name.to_owned(),
            array: shortened(super::text::document(position.array)?),
        }),
        None => {
            *rest = position.rest;
            Ok((position.found, position.element.kind == ElementType::Array))
        }
    }
}

/// A long text without its middle, as the server shows it in this error.
fn shortened(text: Vec<u8>) -> Vec<u8> {
    const MOST: usize = 1024;
    match text.len() < MOST {
        true => text,
        false => [&text[..MOST / 3], b" .......... ", &text[text.len() - MOST / 3..]].concat(),
    }
}

/// The element at the end of `path`, or the first array on the way there. `path` becomes the part after it.
fn element_or_array<'d>(mut document: Doc<'d>, path: &mut &str) -> Result<Option<Element<'d>>, Malformed> {
    loop {
        let (name, rest) = split_path(path);
        let found = document.get(name)?;
        *path = rest;
        match found {
            Some(element) if element.kind == ElementType::Array || rest.is_empty() => return Ok(Some(element)),
            Some(element) if element.kind == ElementType::EmbeddedDocument => document = Doc::new(element.value)?,
            _ => return Ok(None),
        }
    }
}

/// The first component of `path` and the rest.
fn split_path(path: &str) -> (&str, &str) {
    path.split_once('.').unwrap_or((path, ""))
}
