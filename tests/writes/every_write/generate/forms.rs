//! Other forms of the same commands: numbers of other types where the server takes them for equal, and other values of the shard key.

use bson::{Bson, Decimal128, Document, doc};
use rand::{Rng, rngs::StdRng};

use super::Step;

/// The values of the shard key: the commands are generated with words, and get the others here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Regions {
    Words,
    /// 1 and 9, of all types.
    Numbers,
    /// None, null, and 9.
    Missing,
}

impl Regions {
    pub fn of(schema: u64) -> Regions {
        match schema / 3 % 4 {
            0 | 1 => Regions::Words,
            2 => Regions::Numbers,
            _ => Regions::Missing,
        }
    }

    /// Where the second shard begins.
    pub fn split(self) -> Document {
        match self {
            Regions::Words => doc! { "region": "m" },
            Regions::Numbers | Regions::Missing => doc! { "region": 5 },
        }
    }
}

/// Changes the forms of a step's values.
pub struct Forms<'r> {
    pub rng: &'r mut StdRng,
    pub regions: Regions,
    /// Whether `_id`s are of several types.
    pub ids: bool,
}

impl Forms<'_> {
    pub fn step(&mut self, step: &mut Step) {
        match step {
            Step::Command(command) | Step::Twice(command) => self.command(command),
            Step::Late { command, between } => {
                self.command(command);
                between.iter_mut().for_each(|command| self.command(command));
            }
            Step::Transaction { commands, .. } => commands.iter_mut().for_each(|command| self.command(command)),
        }
    }

    /// A collation that a statement states. A router finds the shard of numbers under any, but a statement by a key alone isn't
    /// routed.
    fn collate(&mut self, statement: &mut Document) {
        let query = statement.get_document("q").or_else(|_| statement.get_document("query"));
        let names_shard = query.is_ok_and(|query| query.contains_key("region") || query.contains_key("_id"));
        if names_shard && self.regions != Regions::Words && self.rng.random_bool(0.1) {
            let strength = self.rng.random_range(1..4);
            statement.insert("collation", doc! { "locale": "en", "strength": strength });
        }
    }

    fn command(&mut self, command: &mut Document) {
        if command.contains_key("findAndModify") {
            self.collate(command);
        }
        let is_upsert = command.contains_key("upsert");
        for (name, value) in command.iter_mut() {
            match (name.as_str(), value) {
                ("documents", Bson::Array(documents)) => {
                    for document in documents.iter_mut().filter_map(Bson::as_document_mut) {
                        self.document(document);
                    }
                }
                ("updates" | "deletes", Bson::Array(statements)) => {
                    for statement in statements.iter_mut().filter_map(Bson::as_document_mut) {
                        self.statement(statement);
                    }
                }
                ("query" | "filter", Bson::Document(query)) => self.query(query, is_upsert),
                ("update", Bson::Document(update)) => self.update(update),
                _ => {}
            }
        }
    }

    fn statement(&mut self, statement: &mut Document) {
        self.collate(statement);
        let is_upsert = statement.contains_key("upsert");
        for (name, value) in statement.iter_mut() {
            match (name.as_str(), value) {
                ("q", Bson::Document(query)) => self.query(query, is_upsert),
                ("u", Bson::Document(update)) => self.update(update),
                _ => {}
            }
        }
    }

    fn update(&mut self, update: &mut Document) {
        match update.keys().next().is_some_and(|name| name.starts_with('$')) {
            true => {
                if let Ok(set) = update.get_document_mut("$setOnInsert") {
                    self.document(set);
                }
            }
            false => self.document(update),
        }
    }

    /// A document that is stored.
    fn document(&mut self, document: &mut Document) {
        if let Some(id) = document.get_mut("_id") {
            self.numbers_of_id(id);
        }
        let Some(Bson::String(word)) = document.get("region").cloned() else {
            return;
        };
        match self.region(&word) {
            Some(region) => drop(document.insert("region", region)),
            None if self.rng.random_bool(0.5) => drop(document.insert("region", Bson::Null)),
            None => drop(document.remove("region")),
        }
    }

    /// A shard accepts a shard key of another type only from a retryable statement or in a transaction. So an upsert's query names
    /// the region as documents have it.
    fn query(&mut self, query: &mut Document, is_upsert: bool) {
        for (name, value) in query.iter_mut() {
            match (name.as_str(), value) {
                ("_id", value) => self.numbers_of_id(value),
                ("region", value) => self.word(value, is_upsert),
                ("$or" | "$and", Bson::Array(parts)) => {
                    parts
                        .iter_mut()
                        .filter_map(Bson::as_document_mut)
                        .for_each(|part| self.query(part, is_upsert));
                }
                _ => {}
            }
        }
    }

    fn word(&mut self, value: &mut Bson, is_upsert: bool) {
        match value {
            Bson::String(word) => {
                *value = match self.region(&word.clone()) {
                    Some(Bson::Int32(number)) if !is_upsert => self.number(number),
                    other => other.unwrap_or(Bson::Null),
                }
            }
            Bson::Document(operators) => operators.iter_mut().for_each(|(_, value)| self.word(value, is_upsert)),
            _ => {}
        }
    }

    /// The region in other words; nothing for a missing one.
    fn region(&mut self, word: &str) -> Option<Bson> {
        match (self.regions, word) {
            (Regions::Words, word) => Some(Bson::String(word.to_owned())),
            (Regions::Missing, "a") => None,
            (_, "a") => Some(Bson::Int32(1)),
            _ => Some(Bson::Int32(9)),
        }
    }

    fn numbers_of_id(&mut self, value: &mut Bson) {
        match value {
            Bson::Int32(number) if self.ids => *value = self.number(*number),
            Bson::Document(parts) => parts.iter_mut().for_each(|(_, part)| self.numbers_of_id(part)),
            Bson::Array(parts) => parts.iter_mut().for_each(|part| self.numbers_of_id(part)),
            _ => {}
        }
    }

    fn number(&mut self, number: i32) -> Bson {
        match self.rng.random_range(0..8) {
            0..4 => Bson::Int32(number),
            4 => Bson::Int64(number.into()),
            5 => Bson::Double(number.into()),
            6 if number == 0 => Bson::Double(-0.0),
            _ => Bson::Decimal128(format!("{number}.0").parse::<Decimal128>().unwrap()),
        }
    }
}
