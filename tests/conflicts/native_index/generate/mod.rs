//! Index specifications and documents that collide often: few names, few values, each value in all its disguises.

mod scalar;
mod spec;

use bson::spec::ElementType;
use keyward::raw::Builder;
use rand::seq::IndexedRandom;
use rand::{Rng, rngs::StdRng};

const PATHS: [&str; 17] = [
    "a", "b", "c", "a.b", "a.c", "b.a", "a.b.c", "a.0", "a.1", "a.0.b", "a.b.0", "b.0", "a.0.0", "a.$id", "b.a.b",
    "_id", "a.%x",
];
const NAMES: [&[u8]; 9] = [b"a", b"b", b"c", b"0", b"$a", b"%a", b"%$a", b"", b"\xc3\xa9"];

/// How deep the values of a document nest, but for those that are made to be deep.
const DEPTH: u32 = 3;

/// Makes one index and the documents for it.
pub struct Generator {
    random: StdRng,
    /// Simpler documents make more conflicts, richer ones find odder cases: each index decides.
    richness: u32,
    /// Whether strings are words that a collation may take for each other.
    words: bool,
}

impl Generator {
    pub fn new(mut random: StdRng) -> Self {
        let richness = random.random_range(1..=3);
        Generator {
            random,
            richness,
            words: false,
        }
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_ratio(1, one_in)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *from.choose(&mut self.random).unwrap()
    }

    pub fn document(&mut self, id: usize) -> Vec<u8> {
        let mut builder = Builder::new();
        builder.int32("_id", id as i32);
        for name in [&b"a"[..], b"b", b"c"] {
            if !self.chance(4) {
                self.value(&mut builder, name, DEPTH);
            }
        }
        if self.chance(20) {
            self.value(&mut builder, b"a.b", 1);
        }
        builder.finish()
    }

    /// A document whose `v` is a document with any value in it.
    pub fn nested_value(&mut self, id: usize) -> Vec<u8> {
        self.richness = self.random.random_range(1..=3);
        let mut builder = Builder::new();
        builder.int32("_id", id as i32);
        builder.open(ElementType::EmbeddedDocument, b"v");
        self.value(&mut builder, b"x", 2);
        builder.finish()
    }

    fn value(&mut self, builder: &mut Builder, name: &[u8], depth: u32) {
        let nests = depth > 0 && !self.chance(self.richness + 1);
        if !nests {
            return self.scalar(builder, name, depth == DEPTH);
        }
        if self.chance(2) {
            builder.open(ElementType::EmbeddedDocument, name);
            for _ in 0..self.pick(&[0, 1, 1, 1, 2, 3]) {
                let names = if self.chance(3) { &NAMES[..] } else { &NAMES[..4] };
                let name = self.pick(names);
                self.value(builder, name, depth - 1);
            }
        } else {
            builder.open(ElementType::Array, name);
            let first = if self.chance(10) { 5 } else { 0 };
            for position in 0..self.pick(&[0, 1, 1, 2, 2, 3]) {
                self.value(builder, (first + position).to_string().as_bytes(), depth - 1);
            }
        }
        builder.close();
    }
}
