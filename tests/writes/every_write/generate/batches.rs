//! Batches of statements that Keyward prepares together: each of them is plain, and about one document by its `_id`.

use bson::{Document, doc};
use rand::Rng;

use super::{Generator, region};

impl Generator {
    /// The statements of an `update`.
    pub(super) fn plain_updates(&mut self) -> Vec<Document> {
        let count = self.rng.random_range(2..7);
        (0..count)
            .map(|_| {
                let mut statement = self.plain_upsert();
                statement.remove("upsert");
                let is_routed = self.rng.random_bool(0.7);
                if !is_routed && !statement.get_document("u").unwrap().contains_key("region") {
                    statement.get_document_mut("q").unwrap().remove("region");
                }
                statement
            })
            .collect()
    }

    /// The statements of a `delete`.
    pub(super) fn plain_deletes(&mut self) -> Vec<Document> {
        let count = self.rng.random_range(2..5);
        (0..count)
            .map(|_| {
                let id = self.id();
                let query = match self.rng.random_bool(0.7) {
                    true => doc! { "_id": id, "region": region(id) },
                    false => doc! { "_id": id },
                };
                doc! { "q": query, "limit": 1 }
            })
            .collect()
    }
}
