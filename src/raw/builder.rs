//! Builds documents from elements, names and bytes that need not be UTF-8.

use bson::spec::{BinarySubtype, ElementType};

use super::{Doc, Element, Elements, Malformed, length_field};

/// A document that is being built.
#[derive(Debug, Clone)]
pub struct Builder {
    bytes: Vec<u8>,
    /// The position of the length field of each open nested document, outermost first.
    open: Vec<usize>,
}

/// The size of most documents that are built here: without it, they would be moved several times as they grow.
const CAPACITY: usize = 256;

impl Default for Builder {
    fn default() -> Self {
        let mut bytes = Vec::with_capacity(CAPACITY);
        bytes.extend_from_slice(&[0; 4]);
        Builder {
            bytes,
            open: Vec::new(),
        }
    }
}

impl Builder {
    /// An empty document.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends all elements of `document`.
    pub fn elements(&mut self, document: Doc<'_>) -> Result<&mut Self, Malformed> {
        self.elements_where(document, |_| true)
    }

    /// Appends the elements of `document` that `is_kept` accepts.
    pub fn elements_where(
        &mut self,
        document: Doc<'_>,
        is_kept: impl Fn(&Element<'_>) -> bool,
    ) -> Result<&mut Self, Malformed> {
        for element in document.elements() {
            let element = element?;
            if is_kept(&element) {
                self.element(&element);
            }
        }
        Ok(self)
    }

    /// Starts with the elements of a whole document; more may follow. Starts empty if the bytes aren't a document.
    pub fn from_document(bytes: &[u8]) -> Self {
        match Doc::new(bytes) {
            Ok(document) => {
                let elements = &document.0[..document.0.len() - 1];
                let mut bytes = Vec::with_capacity(elements.len() + CAPACITY);
                bytes.extend_from_slice(elements);
                Builder {
                    bytes,
                    open: Vec::new(),
                }
            }
            Err(_) => Self::default(),
        }
    }

    /// Whether the first element is named `name`; a command's first element names the command.
    pub fn is_first(&self, name: &str) -> bool {
        let first = self.bytes.get(5..).unwrap_or_default();
        first.starts_with(name.as_bytes()) && first.get(name.len()) == Some(&0)
    }

    /// Whether an element of this name was appended; no nested document may be open.
    ///
    /// # Errors
    /// [`Malformed`] if an element before it is.
    pub fn has(&self, name: &str) -> Result<bool, Malformed> {
        debug_assert!(self.open.is_empty(), "the last element is unfinished");
        let elements = Elements { rest: &self.bytes[4..] };
        for element in elements {
            if element?.name == name.as_bytes() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Appends an element whose value is already encoded.
    pub fn append(&mut self, kind: ElementType, name: &[u8], value: &[u8]) -> &mut Self {
        self.name(kind, name, value.len());
        self.bytes.extend_from_slice(value);
        self
    }

    /// Appends the bytes before a value, which will take `value` bytes.
    fn name(&mut self, kind: ElementType, name: &[u8], value: usize) {
        // For each field of each command: names are constants, or come from checked BSON.
        debug_assert!(!name.contains(&0), "a field name can't hold a zero byte");
        self.bytes.reserve(name.len() + value + 2);
        self.bytes.push(kind as u8);
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
    }

    /// Appends `element` unchanged.
    pub fn element(&mut self, element: &Element<'_>) -> &mut Self {
        self.append(element.kind, element.name, element.value)
    }

    /// Appends a string; it need not be UTF-8.
    pub fn string(&mut self, name: &str, text: &[u8]) -> &mut Self {
        self.name(ElementType::String, name.as_bytes(), text.len() + 5);
        self.bytes.extend_from_slice(&length_field(text.len() + 1));
        self.bytes.extend_from_slice(text);
        self.bytes.push(0);
        self
    }

    /// Appends an int32.
    pub fn int32(&mut self, name: &str, number: i32) -> &mut Self {
        self.append(ElementType::Int32, name.as_bytes(), &number.to_le_bytes())
    }

    /// Appends an int64.
    pub fn int64(&mut self, name: &str, number: i64) -> &mut Self {
        self.append(ElementType::Int64, name.as_bytes(), &number.to_le_bytes())
    }

    /// Appends a timestamp, given as one number with the seconds in its upper half.
    pub fn timestamp(&mut self, name: &str, value: u64) -> &mut Self {
        self.append(ElementType::Timestamp, name.as_bytes(), &value.to_le_bytes())
    }

    /// Appends a double.
    pub fn double(&mut self, name: &str, number: f64) -> &mut Self {
        self.append(ElementType::Double, name.as_bytes(), &number.to_le_bytes())
    }

    /// Appends bytes, of a subtype of the BSON specification.
    pub fn binary(&mut self, name: &[u8], subtype: BinarySubtype, bytes: &[u8]) -> &mut Self {
        let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
        let value = [&length.to_le_bytes()[..], &[subtype.into()], bytes].concat();
        self.append(ElementType::Binary, name, &value)
    }

    /// Appends a boolean.
    pub fn boolean(&mut self, name: &str, flag: bool) -> &mut Self {
        self.append(ElementType::Boolean, name.as_bytes(), &[flag.into()])
    }

    /// Appends a whole document.
    pub fn document(&mut self, name: &str, document: Doc<'_>) -> &mut Self {
        self.append(ElementType::EmbeddedDocument, name.as_bytes(), document.bytes())
    }

    /// Opens a nested document or array; the next elements go into it until [`Builder::close`].
    pub fn open(&mut self, kind: ElementType, name: &[u8]) -> &mut Self {
        self.append(kind, name, &[]);
        self.open.push(self.bytes.len());
        self.bytes.extend_from_slice(&[0; 4]);
        self
    }

    /// Closes the innermost open document or array.
    pub fn close(&mut self) -> &mut Self {
        if let Some(start) = self.open.pop() {
            self.end(start);
        }
        self
    }

    /// Appends an array; `append` makes its elements from `items` and gets each element's name.
    pub fn array<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut append: impl FnMut(&mut Builder, &str, T),
    ) -> &mut Self {
        self.open(ElementType::Array, name.as_bytes());
        for (index, item) in items.into_iter().enumerate() {
            append(self, &index.to_string(), item);
        }
        self.close()
    }

    /// Appends an array of int32s.
    pub fn int32s(&mut self, name: &str, numbers: impl IntoIterator<Item = i32>) -> &mut Self {
        self.array(name, numbers, |array, index, number| {
            array.int32(index, number);
        })
    }

    /// Appends an array of whole documents, given as their bytes.
    pub fn documents(&mut self, name: &str, documents: impl IntoIterator<Item = impl AsRef<[u8]>>) -> &mut Self {
        self.array(name, documents, |array, index, document| {
            array.append(ElementType::EmbeddedDocument, index.as_bytes(), document.as_ref());
        })
    }

    /// Closes all open documents and returns the whole document.
    pub fn finish(mut self) -> Vec<u8> {
        while !self.open.is_empty() {
            self.close();
        }
        self.end(0);
        self.bytes
    }

    /// Ends the document whose length field is at `start`.
    fn end(&mut self, start: usize) {
        self.bytes.push(0);
        let length = length_field(self.bytes.len() - start);
        self.bytes[start..start + 4].copy_from_slice(&length);
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn only_its_own_elements_count_while_it_is_built() {
        let mut builder = Builder::new();
        assert_eq!(builder.has("a"), Ok(false));
        builder
            .int32("a", 1)
            .document("b", Doc::new(&doc! { "c": 1 }.to_vec().unwrap()).unwrap());
        assert_eq!(
            ["a", "b", "c"].map(|name| builder.has(name)),
            [Ok(true), Ok(true), Ok(false)]
        );
    }

    #[test]
    fn builds_nested_documents() {
        let mut builder = Builder::new();
        builder.open(ElementType::EmbeddedDocument, b"k");
        builder.string("email", b"a@x").int32("n", 1);
        builder.close().double("ok", 1.0).int32s("i", [7, 8]);
        builder.documents("d", [doc! { "a": 1 }.to_vec().unwrap()]);
        let expected = doc! { "k": { "email": "a@x", "n": 1 }, "ok": 1.0, "i": [7, 8], "d": [{ "a": 1 }] };
        assert_eq!(builder.finish(), expected.to_vec().unwrap());
    }
}
