//! Reads a command's name, first value and database from the body of an OP_MSG.
//!
//! As for the server, the name is that of the first field, and the database is `$db`. Keyward interprets nothing else here.

use bson::spec::ElementType;

use crate::raw::{Element, Malformed};
use crate::wire::OpMsg;

/// Name, first field and database of a command that the server could run.
#[derive(Debug, Clone, Copy)]
pub struct CommandHead<'a> {
    /// The whole message.
    pub message: OpMsg<'a>,
    /// The name of the first field.
    pub name: &'a [u8],
    /// The first field itself.
    pub first: Element<'a>,
    /// The value of `$db`.
    pub database: &'a [u8],
    /// Whether `$db` occurs more than once, so that readers may differ.
    pub has_two_databases: bool,
}

impl<'a> CommandHead<'a> {
    /// Reads the head of a command. `None` if the body is empty, or if `$db` is missing or isn't a string: the server then
    /// returns an error for any command.
    ///
    /// # Errors
    /// [`Malformed`] if the body can't be split into elements.
    pub fn read(message: &OpMsg<'a>) -> Result<Option<Self>, Malformed> {
        let mut first = None;
        let mut database = None;
        let mut has_two_databases = false;
        for element in message.body.elements() {
            let element = element?;
            first.get_or_insert(element);
            if element.name == b"$db" {
                has_two_databases |= database.replace(element).is_some();
            }
        }
        let (Some(first), Some(database)) = (first, database) else {
            return Ok(None);
        };
        let is_string = matches!(database.kind, ElementType::String | ElementType::Symbol);
        Ok(database
            .as_string_bytes()
            .filter(|_| is_string || has_two_databases)
            .map(|database| CommandHead {
                message: *message,
                name: first.name,
                first,
                database,
                has_two_databases,
            }))
    }
}
