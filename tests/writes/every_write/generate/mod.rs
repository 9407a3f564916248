//! Schemas and sequences of commands that collide often: few documents, few fields, few values.
//!
//! A document's shard follows from its `_id`, so that no two shards hold the same `_id`: even ones have the first region, odd ones the
//! second. Every query names the shard key or the `_id`, so that a router can target it.

mod batches;
mod forms;
mod ids;
mod layout;
mod queries;
mod routed;
mod values;

use bson::{Bson, Document, doc, spec::BinarySubtype};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};

use forms::Forms;
use ids::Ids;
pub use layout::{Layout, Regions};
use queries::region_of;
pub use routed::is_routed;
use routed::routed_field;

/// So many sequences run on one collection, one after another.
pub const SEQUENCES_A_SCHEMA: u64 = 20;

/// What a client does next.
#[derive(Debug, Clone)]
pub enum Step {
    /// One command.
    Command(Document),
    /// The same retryable command twice.
    Twice(Document),
    /// The same, with other clients' commands in between.
    Late {
        /// The retryable command.
        command: Document,
        /// The others.
        between: Vec<Document>,
    },
    /// A client's own transaction.
    Transaction {
        /// Its commands; the first one that fails ends it.
        commands: Vec<Document>,
        /// Whether it is committed in the end.
        commit: bool,
    },
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Command(command) => write!(f, "command {command}"),
            Step::Twice(command) => write!(f, "twice {command}"),
            Step::Late { command, between } => {
                let between: Vec<String> = between.iter().map(Document::to_string).collect();
                write!(f, "late {command} after [{}]", between.join("; "))
            }
            Step::Transaction { commands, commit } => {
                let commands: Vec<String> = commands.iter().map(Document::to_string).collect();
                let end = if *commit { "commit" } else { "abort" };
                write!(f, "transaction [{}] {end}", commands.join("; "))
            }
        }
    }
}

/// How the collection's constraints are kept: every third one in strict mode.
pub fn strategy(schema: u64) -> &'static str {
    match schema % 3 {
        0 => "transaction",
        _ => "compensating",
    }
}

/// The unique indexes of a collection, as `createIndexes` takes them, `unique` aside.
pub fn indexes(schema: u64) -> Vec<Document> {
    let mut rng = StdRng::seed_from_u64(schema);
    let is_collated = Layout::of(schema).collation.is_some();
    let mut indexes: Vec<Document> = Vec::new();
    let count = if rng.random_bool(0.5) { 1 } else { 2 };
    while indexes.len() < count {
        let mut index = index(&mut rng);
        if is_collated && !index.contains_key("collation") && rng.random_bool(0.2) {
            index.insert("collation", doc! { "locale": "simple" });
        }
        if indexes.iter().all(|other| other.get("name") != index.get("name")) {
            indexes.push(index);
        }
    }
    indexes
}

fn index(rng: &mut StdRng) -> Document {
    let key = match rng.random_range(0..9) {
        0 | 1 => doc! { "a": 1 },
        2 => doc! { "a": 1, "b": -1 },
        3 => doc! { "c.d": 1 },
        4 => doc! { "t": 1 },
        5 => doc! { "i.x": 1 },
        6 => doc! { "i.x": 1, "i.y": 1 },
        7 => doc! { "b": 1, "c.d": 1 },
        _ => doc! { "region": 1, "a": 1 },
    };
    let name: Vec<String> = key.iter().map(|(path, order)| format!("{path}_{order}")).collect();
    let mut index = doc! { "key": key, "name": name.join("_") };
    match rng.random_range(0..10) {
        0..=2 => {
            index.insert("sparse", true);
        }
        3..=6 => {
            let filters = [
                doc! { "s": "on" },
                doc! { "n": { "$gt": 1 } },
                doc! { "b": { "$exists": true } },
                doc! { "a": { "$type": "number" } },
                // Of what stands below arrays of scalars, and of documents that are made of those.
                doc! { "t.u": Bson::Null },
                doc! { "t.u": { "$in": [Bson::Null, 1] } },
                doc! { "t.u.v": { "$lte": Bson::Null } },
                doc! { "t": { "$type": "int" } },
                doc! { "t": { "$type": "object" } },
                doc! { "c.d": { "$exists": true } },
                doc! { "i.x": { "$type": ["null", "double"] } },
            ];
            index.insert("partialFilterExpression", filters.choose(rng).unwrap().clone());
        }
        _ => {}
    }
    if rng.random_bool(0.25) {
        index.insert("collation", layout::collation(rng));
    }
    if rng.random_bool(0.4) {
        index.insert("route", "if possible");
    }
    index
}

/// The commands of one sequence on the collection `name`.
pub fn sequence(seed: u64, name: &str) -> Vec<Step> {
    let schema = seed / SEQUENCES_A_SCHEMA;
    let (layout, indexes) = (Layout::of(schema), indexes(schema));
    let routed = indexes.iter().filter(|index| is_routed(index, &layout));
    let mut generator = Generator {
        rng: StdRng::seed_from_u64(seed),
        name: name.to_owned(),
        routed: routed.filter_map(routed_field).collect(),
        needs_id: layout.key.has_id(),
        is_collated: layout.collation.is_some(),
    };
    let steps = generator.rng.random_range(6..20);
    // Something to collide with.
    let mut sequence = vec![Step::Command(generator.insert(6, false))];
    sequence.extend((0..steps).map(|_| generator.step()));
    let mut forms = Forms {
        rng: &mut generator.rng,
        layout: &layout,
        ids: Ids::of(seed, &layout),
    };
    sequence.iter_mut().for_each(|step| forms.step(step));
    sequence
}

pub fn region(id: i32) -> &'static str {
    if id % 2 == 0 { "a" } else { "z" }
}

/// A session that nobody else has.
pub fn session(id: u128) -> Document {
    let bytes = id.to_le_bytes().to_vec();
    doc! { "id": bson::Binary { subtype: BinarySubtype::Uuid, bytes } }
}

struct Generator {
    rng: StdRng,
    name: String,
    /// The fields of constraints of their own that are routed.
    routed: Vec<&'static str>,
    /// Whether a statement about one document names its `_id`.
    needs_id: bool,
    /// Whether text compares by a default collation.
    is_collated: bool,
}

impl Generator {
    fn step(&mut self) -> Step {
        if self.rng.random_bool(0.12) {
            let count = self.rng.random_range(1..5);
            return Step::Transaction {
                commands: (0..count).map(|_| self.command()).collect(),
                commit: self.rng.random_bool(0.8),
            };
        }
        if let [field, ..] = self.routed[..]
            && self.rng.random_bool(0.2)
        {
            return Step::Command(self.by_key(field));
        }
        let mut command = self.command();
        if !is_retryable(&command) || self.rng.random_bool(0.4) {
            return Step::Command(command);
        }
        // Its session is another one in each run.
        command.insert("txnNumber", 1_i64);
        match self.rng.random_range(0..10) {
            0..3 if is_one_statement(&command) => Step::Twice(command),
            3..6 if is_one_statement(&command) => {
                let count = self.rng.random_range(1..4);
                let between = (0..count).map(|_| self.command()).collect();
                Step::Late { command, between }
            }
            _ => Step::Command(command),
        }
    }

    fn command(&mut self) -> Document {
        match self.rng.random_range(0..100) {
            0..20 => {
                let (count, ordered) = (self.rng.random_range(1..5), self.rng.random_bool(0.5));
                self.insert(count, ordered)
            }
            20..62 => self.update(),
            62..75 => self.delete(),
            _ => self.find_and_modify(),
        }
    }

    fn insert(&mut self, count: usize, ordered: bool) -> Document {
        // Distinct within a command: which of two errors of equal `_id`s comes first is tried elsewhere.
        let mut ids: Vec<i32> = Vec::new();
        while ids.len() < count {
            let id = self.id();
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let documents: Vec<Document> = ids
            .into_iter()
            .map(|id| {
                let mut document = doc! { "_id": id, "region": region(id) };
                document.extend(self.fields());
                document
            })
            .collect();
        doc! { "insert": &self.name, "documents": documents, "ordered": ordered }
    }

    fn update(&mut self) -> Document {
        let mut command = doc! { "update": &self.name };
        let mut statements = match self.rng.random_range(0..13) {
            0 | 1 => {
                let mut statement = self.selective_update();
                let many = self.query_of_many();
                statement.insert("q", many);
                statement.insert("multi", true);
                statement.insert("hint", doc! { "_id": 1 });
                vec![statement]
            }
            2..=7 => vec![self.update_of_one()],
            8..=10 => self.plain_updates(),
            _ => (0..self.rng.random_range(2..4)).map(|_| self.update_of_one()).collect(),
        };
        let is_unordered = self.rng.random_bool(0.3);
        if is_unordered && statements.len() > 1 {
            self.make_distinct(&mut statements);
        }
        command.insert("updates", statements);
        if is_unordered {
            command.insert("ordered", false);
        }
        command.insert("let", doc! { "v": self.scalar() });
        command
    }

    /// Each statement about a document of its own: a router may carry unordered ones out in another order.
    fn make_distinct(&mut self, statements: &mut [Document]) {
        let first = self.id();
        for (statement, id) in statements.iter_mut().zip(first..) {
            let query = statement.get_document_mut("q").unwrap();
            query.insert("_id", id);
            query.insert("region", region(id));
            let Ok(update) = statement.get_document_mut("u") else {
                continue;
            };
            if let Ok(set) = update.get_document_mut("$setOnInsert") {
                set.insert("_id", id);
            }
            // A replacement stays on its shard.
            if update.contains_key("region") {
                update.insert("region", region(id));
            }
        }
    }

    /// A statement with `u` and perhaps `arrayFilters`, and a query that names no array.
    fn selective_update(&mut self) -> Document {
        loop {
            let statement = self.update_of_one();
            let uses_position = statement
                .get_document("u")
                .is_ok_and(|update| update.to_string().contains(".$\""));
            let is_replacement = statement
                .get_document("u")
                .is_ok_and(|update| update.keys().next().is_none_or(|name| !name.starts_with('$')));
            let sets_id = statement
                .get_document("u")
                .is_ok_and(|update| update.contains_key("$setOnInsert"));
            if !uses_position && !is_replacement && !sets_id {
                let mut statement = statement;
                statement.remove("upsert");
                return statement;
            }
        }
    }

    /// An upsert of whole values.
    fn plain_upsert(&mut self) -> Document {
        let id = self.id();
        let mut query = match self.rng.random_bool(0.8) {
            true => doc! { "_id": id, "region": region(id) },
            false => doc! { "region": { "$eq": region(id) }, "_id": { "$eq": id } },
        };
        let mut fields = self.fields();
        let update = match self.rng.random_range(0..10) {
            0..=2 => {
                let mut replacement = doc! { "region": region(id) };
                replacement.extend(fields);
                replacement
            }
            3 | 4 => {
                if let Some(value) = fields.remove("a").filter(|value| value.as_i32().is_some()) {
                    query.insert("a", value);
                }
                doc! { "$set": fields, "$inc": { "count": 1 } }
            }
            5 | 6 => match fields.remove("b") {
                Some(value) => doc! { "$setOnInsert": { "b": value }, "$set": fields },
                None => doc! { "$setOnInsert": fields },
            },
            7 => doc! { "$unset": { "a": 1 }, "$inc": { "count": 1 } },
            8 => {
                fields.remove("a");
                doc! { "$set": fields, "$inc": { "a": self.operand() } }
            }
            _ => doc! { "$set": fields },
        };
        doc! { "u": update, "q": query, "upsert": true }
    }

    fn update_of_one(&mut self) -> Document {
        if self.rng.random_bool(0.15) {
            return self.plain_upsert();
        }
        let upsert = self.rng.random_bool(0.2);
        let mut query = if upsert {
            self.exact_query()
        } else {
            self.query_of_one()
        };
        let mut statement = Document::new();
        match self.rng.random_range(0..20) {
            0..=2 => {
                let mut replacement = Document::new();
                replacement.insert("region", region_of(&query));
                replacement.extend(self.fields());
                statement.insert("u", replacement);
                if upsert && !query.contains_key("_id") {
                    let id = self.id_in(&query);
                    query.insert("_id", id);
                }
            }
            3..=5 => {
                statement.insert("u", self.pipeline());
                if upsert && !query.contains_key("_id") {
                    let id = self.id_in(&query);
                    query.insert("_id", id);
                }
            }
            _ => {
                let (mut update, filters, condition) = self.operators();
                if let Some(condition) = condition
                    && !upsert
                {
                    query.extend(condition);
                }
                if let Some(filters) = filters {
                    statement.insert("arrayFilters", filters);
                }
                if upsert && !query.contains_key("_id") {
                    update.insert("$setOnInsert", doc! { "_id": self.id_in(&query) });
                }
                statement.insert("u", update);
            }
        }
        if query.get_i32("_id").is_err() {
            // Which one of several is taken must not depend on which indexes there are.
            statement.insert("hint", doc! { "_id": 1 });
        }
        statement.insert("q", query);
        if upsert {
            statement.insert("upsert", true);
        }
        statement
    }

    fn delete(&mut self) -> Document {
        if self.rng.random_bool(0.25) {
            let deletes = self.plain_deletes();
            return doc! { "delete": &self.name, "deletes": deletes, "ordered": self.rng.random_bool(0.5) };
        }
        let count = if self.rng.random_bool(0.7) { 1 } else { 2 };
        let deletes: Vec<Document> = (0..count)
            .map(|_| match self.rng.random_bool(0.7) {
                true => doc! { "q": self.query_of_one(), "limit": 1, "hint": { "_id": 1 } },
                false => doc! { "q": self.query_of_many(), "limit": 0 },
            })
            .collect();
        doc! { "delete": &self.name, "deletes": deletes, "ordered": self.rng.random_bool(0.5) }
    }

    fn find_and_modify(&mut self) -> Document {
        let mut command = doc! { "findAndModify": &self.name };
        if self.rng.random_bool(0.2) {
            command.insert("query", self.routed_query());
            command.insert("remove", true);
        } else {
            let mut statement = self.update_of_one();
            while !statement.get_document("q").unwrap().contains_key("region") {
                statement = self.update_of_one();
            }
            command.insert("query", statement.remove("q").unwrap());
            command.insert("update", statement.remove("u").unwrap());
            command.extend(statement);
            command.insert("new", self.rng.random_bool(0.5));
            command.insert("let", doc! { "v": self.scalar() });
        }
        command.remove("hint");
        let sorts = [
            doc! { "_id": 1 },
            doc! { "_id": -1 },
            doc! { "a": 1, "_id": 1 },
            doc! { "n": -1, "_id": -1 },
        ];
        command.insert("sort", sorts.choose(&mut self.rng).unwrap().clone());
        if self.rng.random_bool(0.3) {
            let fields = [doc! { "a": 1 }, doc! { "t": 0 }, doc! { "_id": 0, "n": 1 }];
            command.insert("fields", fields.choose(&mut self.rng).unwrap().clone());
        }
        command
    }
}

fn statements<'c>(command: &'c Document, list: &str) -> Vec<&'c Document> {
    let statements = command
        .get_array(list)
        .map(|list| list.iter().filter_map(Bson::as_document).collect());
    statements.unwrap_or_default()
}

/// Whether a driver would send it with a number: a statement about many documents can't be repeated.
fn is_retryable(command: &Document) -> bool {
    let many = |statement: &&Document| statement.contains_key("multi") || statement.get_i32("limit").ok() == Some(0);
    !["updates", "deletes"]
        .iter()
        .any(|list| statements(command, list).iter().any(many))
}

fn is_one_statement(command: &Document) -> bool {
    ["updates", "deletes", "documents"]
        .iter()
        .all(|list| statements(command, list).len() <= 1)
}
