//! Maps collections to values. Keyward searches such a map for each command that may write, so a search must take few steps.

/// Values by the database and the collection that they belong to, in one sorted list. Names are compared byte for byte.
#[derive(Debug, Clone)]
pub struct NamespaceMap<T>(Vec<Entry<T>>);

#[derive(Debug, Clone)]
struct Entry<T> {
    database: Vec<u8>,
    collection: Vec<u8>,
    value: T,
}

impl<T> Default for NamespaceMap<T> {
    fn default() -> Self {
        NamespaceMap(Vec::new())
    }
}

impl<T> NamespaceMap<T> {
    /// The number of collections.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The value for `collection` in `database`.
    pub fn get(&self, database: &[u8], collection: &[u8]) -> Option<&T> {
        let place = self.place(database, collection).ok()?;
        Some(&self.0[place].value)
    }

    /// Drops every second collection.
    pub fn halve(&mut self) {
        let mut stays = false;
        self.0.retain(|_| {
            stays = !stays;
            stays
        });
    }

    /// Adds a value, or replaces the present one.
    pub fn insert(&mut self, database: &str, collection: &str, value: T) {
        let (database, collection) = (database.as_bytes().to_vec(), collection.as_bytes().to_vec());
        match self.place(&database, &collection) {
            Ok(place) => self.0[place].value = value,
            Err(place) => self.0.insert(
                place,
                Entry {
                    database,
                    collection,
                    value,
                },
            ),
        }
    }

    /// All values, in the order of their names.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|entry| &entry.value)
    }

    /// Each database once.
    pub fn databases(&self) -> impl Iterator<Item = &[u8]> {
        let of_databases = self.0.chunk_by(|one, next| one.database == next.database);
        of_databases.map(|entries| entries[0].database.as_slice())
    }

    fn place(&self, database: &[u8], collection: &[u8]) -> Result<usize, usize> {
        self.0.binary_search_by(|entry| {
            let by_database = entry.database.as_slice().cmp(database);
            by_database.then_with(|| entry.collection.as_slice().cmp(collection))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_both_names() {
        let mut map = NamespaceMap::default();
        let names = [("b", "y"), ("a", "y"), ("b", "x"), ("ab", ""), ("a", "by")];
        for (value, (database, collection)) in names.iter().enumerate() {
            map.insert(database, collection, value);
        }
        for (value, (database, collection)) in names.iter().enumerate() {
            assert_eq!(map.get(database.as_bytes(), collection.as_bytes()), Some(&value));
        }
        for (database, collection) in [("a", "b"), ("a", "x"), ("", "ab"), ("c", "y"), ("aby", "")] {
            assert_eq!(map.get(database.as_bytes(), collection.as_bytes()), None);
        }
        assert_eq!(map.databases().collect::<Vec<_>>(), [&b"a"[..], b"ab", b"b"]);
        assert_eq!(map.values().copied().collect::<Vec<_>>(), [4, 1, 3, 2, 0]);
    }

    #[test]
    fn a_later_value_replaces_the_one_before() {
        let mut map = NamespaceMap::default();
        map.insert("a", "x", 1);
        map.insert("a", "x", 2);
        assert_eq!(map.values().collect::<Vec<_>>(), [&2]);
    }
}
