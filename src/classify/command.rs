//! A command's outline: its name, its first value and its database, read from the body of an OP_MSG.
//!
//! The name is that of the first field and the database is `$db`, as for the server; nothing else is interpreted.

use bson::spec::ElementType;

use crate::raw::{Element, Malformed};
use crate::wire::OpMsg;

/// The outline of a command that the server could run.
#[derive(Debug, Clone, Copy)]
pub struct Command<'a> {
    /// The whole message.
    pub message: OpMsg<'a>,
    /// The name of the first field.
    pub name: &'a [u8],
    /// The first field itself.
    pub first: Element<'a>,
    /// The value of `$db`.
    pub database: &'a [u8],
    /// Whether `$db` stands there more than once, so that readers may differ.
    pub has_two_databases: bool,
}

impl<'a> Command<'a> {
    /// Reads the outline; `None` if the body is empty or `$db` is missing or no string, which the server answers with
    /// an error whatever the command.
    ///
    /// # Errors
    /// [`Malformed`] if the body's elements can't be told apart.
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
            .map(|database| Command {
                message: *message,
                name: first.name,
                first,
                database,
                has_two_databases,
            }))
    }
}
