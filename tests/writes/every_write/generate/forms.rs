//! Other forms of the same commands: numbers of other types where the server takes them for equal, and other values of the shard key.

use bson::{Bson, Decimal128, Document, doc};
use rand::{Rng, rngs::StdRng};

use super::Step;
use super::ids::{Ids, exact_id};
use super::layout::{Layout, Regions, ShardKey};

/// Changes the forms of a step's values.
pub struct Forms<'r> {
    pub rng: &'r mut StdRng,
    pub layout: &'r Layout,
    pub ids: Ids,
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
        let query = query.cloned().unwrap_or_default();
        // A document may have text in it.
        let names_shard = query.contains_key("region") || self.ids != Ids::Documents && query.contains_key("_id");
        if self.layout.key != ShardKey::Region {
            self.collate_by_hash(statement, &query);
        } else if names_shard && self.layout.regions != Regions::Words && self.rng.random_bool(0.1) {
            let strength = self.rng.random_range(1..4);
            statement.insert("collation", doc! { "locale": "en", "strength": strength });
        }
    }

    /// Where a collation says how text compares, a router finds no shard by a hash, because it could be that of text. So most statements
    /// about one document state the simple collation.
    fn collate_by_hash(&mut self, statement: &mut Document, query: &Document) {
        let is_of_many = statement.contains_key("multi") || statement.get_i32("limit").ok() == Some(0);
        if self.layout.collation.is_none() || is_of_many {
            return;
        }
        let update = statement.get_document("u").ok();
        let is_replacement = update.is_some_and(|update| update.keys().all(|name| !name.starts_with('$')));
        let names_region = query.contains_key("region");
        // A router looks for the shard of a replacement, unless the query names it.
        let names_shard = exact_id(query).is_some() && (names_region || !is_replacement);
        let must = statement.contains_key("upsert") || statement.contains_key("query") || !names_shard;
        if must || names_region && self.rng.random_bool(0.3) {
            statement.insert("collation", doc! { "locale": "simple" });
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
        if command.contains_key("findAndModify") {
            self.restate_id(command);
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
        self.restate_id(statement);
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
            self.id(id);
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
                ("_id", value) => self.id(value),
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
        match (self.layout.regions, word) {
            (Regions::Words, word) => Some(Bson::String(word.to_owned())),
            (Regions::Missing, "a") => None,
            (_, "a") => Some(Bson::Int32(1)),
            _ => Some(Bson::Int32(3)),
        }
    }

    pub(super) fn number(&mut self, number: i32) -> Bson {
        match self.rng.random_range(0..8) {
            0..4 => Bson::Int32(number),
            4 => Bson::Int64(number.into()),
            5 => Bson::Double(number.into()),
            6 if number == 0 => Bson::Double(-0.0),
            _ => Bson::Decimal128(format!("{number}.0").parse::<Decimal128>().unwrap()),
        }
    }
}
