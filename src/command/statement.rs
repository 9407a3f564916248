//! Reads and rewrites one statement that changes documents: of an `update` or `delete` command, or a whole `findAndModify`.

use bson::spec::ElementType;

use super::batch::number;
use super::running::is_about_running;
use crate::raw::{Builder, Doc, Element, Malformed};

/// The command that a statement belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatementKind {
    /// `update`.
    Update,
    /// `delete`.
    Delete,
    /// `findAndModify`.
    FindAndModify,
}

impl StatementKind {
    /// The field of a statement that selects its documents.
    pub fn query_name(self) -> &'static str {
        match self {
            StatementKind::FindAndModify => "query",
            StatementKind::Update | StatementKind::Delete => "q",
        }
    }

    /// Whether the statement's query is a document, or may be missing. Keyward must not treat another value as an empty query:
    /// that would change documents that the client didn't mean.
    pub fn can_read_query(self, raw: Doc<'_>) -> Result<bool, Malformed> {
        Ok(match raw.get(self.query_name())? {
            Some(query) if query.is_nothing() => self == StatementKind::FindAndModify,
            Some(query) => query.kind == ElementType::EmbeddedDocument,
            None => self == StatementKind::FindAndModify,
        })
    }

    /// The name of the batch that contains such statements, if they are in a batch.
    pub fn list(self) -> Option<&'static str> {
        match self {
            StatementKind::Update => Some("updates"),
            StatementKind::Delete => Some("deletes"),
            StatementKind::FindAndModify => None,
        }
    }
}

/// One statement.
#[derive(Debug, Clone, Copy)]
pub struct Statement<'a> {
    /// The command that it is part of.
    pub kind: StatementKind,
    /// The command's body.
    pub body: Doc<'a>,
    /// The statement itself; the body for a `findAndModify`.
    pub raw: Doc<'a>,
    /// Whether it is about one document only.
    pub is_single: bool,
    /// Whether it inserts a document if none matches.
    pub is_upsert: bool,
}

/// The documents that a statement selects, in the terms of `find`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selection<'a> {
    /// The query; all documents if there is none.
    pub query: Option<Doc<'a>>,
    /// `sort`, `collation`, `hint`, `let` and `maxTimeMS`, if the statement or its command has them.
    pub options: [Option<Element<'a>>; 5],
    /// The constants of an update by a pipeline (`c`), which its query may use as well.
    pub constants: Option<Doc<'a>>,
    /// Whether it is about one document only.
    pub is_single: bool,
}

impl<'a> Statement<'a> {
    /// The statement `raw` of the command `body`.
    pub fn of(kind: StatementKind, body: Doc<'a>, raw: Doc<'a>) -> Result<Self, Malformed> {
        let is_single = match kind {
            StatementKind::Update => !raw.is_set("multi")?,
            // As the server reads it: anything but a number is 0, and so deletes all documents.
            StatementKind::Delete => raw.get("limit")?.and_then(|limit| number(&limit)) == Some(1.0),
            StatementKind::FindAndModify => true,
        };
        Ok(Statement {
            kind,
            body,
            raw,
            is_single,
            is_upsert: raw.is_set("upsert")?,
        })
    }

    /// The statement's query, if it has one.
    pub fn query(self) -> Result<Option<Doc<'a>>, Malformed> {
        let query = self.raw.get(self.kind.query_name())?;
        Ok(query.map(|query| query.as_document_or_array()).transpose()?.flatten())
    }

    /// Whether the statement deletes documents.
    pub fn deletes(self) -> Result<bool, Malformed> {
        Ok(match self.kind {
            StatementKind::Delete => true,
            StatementKind::FindAndModify => self.raw.is_set("remove")?,
            StatementKind::Update => false,
        })
    }

    /// The document that replaces another one, if the statement's update is a replacement.
    pub fn replacement(self) -> Result<Option<Doc<'a>>, Malformed> {
        let update = self.update()?.map(|update| update.as_document()).transpose()?;
        let Some(update) = update.flatten() else {
            return Ok(None);
        };
        let first = update.elements().next().transpose()?;
        Ok(first
            .is_none_or(|first| !first.name.starts_with(b"$"))
            .then_some(update))
    }

    /// The statement's update: operators, a replacement or a pipeline.
    pub fn update(self) -> Result<Option<Element<'a>>, Malformed> {
        match self.kind {
            StatementKind::Update => self.raw.get("u"),
            StatementKind::FindAndModify => self.raw.get("update"),
            StatementKind::Delete => Ok(None),
        }
    }

    /// The documents that it selects.
    pub fn selection(self) -> Result<Selection<'a>, Malformed> {
        let variables = self.body.get("let")?;
        let options = [
            self.raw.get("sort")?,
            self.raw.get("collation")?,
            self.raw.get("hint")?,
            variables,
            self.body.get("maxTimeMS")?,
        ];
        Ok(Selection {
            query: self.query()?,
            options: options.map(|option| option.filter(|option| !option.is_nothing())),
            constants: self.constants()?,
            is_single: self.is_single,
        })
    }

    fn constants(self) -> Result<Option<Doc<'a>>, Malformed> {
        match self.kind {
            StatementKind::Update => self.raw.nested("c"),
            StatementKind::Delete | StatementKind::FindAndModify => Ok(None),
        }
    }

    /// All documents under this collation, within the client's time limit.
    pub fn under(self, collation: Option<Element<'a>>) -> Result<Selection<'a>, Malformed> {
        Ok(Selection {
            query: None,
            options: [None, collation, None, None, self.body.get("maxTimeMS")?],
            ..Selection::default()
        })
    }

    /// The statement itself, with the query `rewritten` instead of its own.
    pub fn with_query(self, rewritten: &[u8]) -> Result<Vec<u8>, Malformed> {
        self.rewritten(rewritten, None, false)
    }

    /// Works as [`Statement::with_query`], for a statement that must insert nothing if no document matches.
    pub fn without_upsert(self, rewritten: &[u8]) -> Result<Vec<u8>, Malformed> {
        self.rewritten(rewritten, None, self.is_upsert)
    }

    /// The statement itself, with the query `rewritten` and another `update`.
    pub fn with_update(self, rewritten: &[u8], update: &[u8]) -> Result<Vec<u8>, Malformed> {
        self.rewritten(rewritten, Some(update), false)
    }

    fn rewritten(self, rewritten: &[u8], update: Option<&[u8]>, only_updates: bool) -> Result<Vec<u8>, Malformed> {
        let mut raw = Builder::new();
        for element in self.raw.elements() {
            let element = element?;
            match (element.name, update) {
                (name, _) if name == self.kind.query_name().as_bytes() => {
                    raw.append(ElementType::EmbeddedDocument, name, rewritten)
                }
                (b"u" | b"update", Some(update)) => raw.append(ElementType::EmbeddedDocument, element.name, update),
                (b"upsert", _) if only_updates => continue,
                _ => raw.element(&element),
            };
        }
        if self.raw.get(self.kind.query_name())?.is_none() {
            raw.append(
                ElementType::EmbeddedDocument,
                self.kind.query_name().as_bytes(),
                rewritten,
            );
        }
        Ok(raw.finish())
    }

    /// The statement as a command of its own. If `rewritten` is given, it replaces the statement's query.
    pub fn command(self, rewritten: Option<&[u8]>) -> Result<Builder, Malformed> {
        let raw = match rewritten {
            Some(rewritten) => self.with_query(rewritten)?,
            None => self.raw.bytes().to_vec(),
        };
        let list = self.kind.list();
        let body = match list {
            Some(_) => self.body,
            None => Doc::new(&raw)?,
        };
        let mut command = Builder::new();
        command.elements_where(body, |element| {
            Some(element.name) != list.map(str::as_bytes) && !is_about_running(element)
        })?;
        if let Some(list) = list {
            command.open(ElementType::Array, list.as_bytes());
            command.append(ElementType::EmbeddedDocument, b"0", &raw);
            command.close();
        }
        Ok(command)
    }
}
