//! Checks the `constraints` of the file: each by itself, then against the others.
//!
//! [`Constraint::new`] checks one constraint. This module adds the position in the file. It also refuses two
//! constraints on one collection with the same name or the same meaning, and two constraints that would share a proxy
//! collection.

mod parts;

use std::sync::Arc;

use bson::{Bson, doc};

use super::check::FoundProblems;
use super::problem::SettingPath;
use super::raw::RawConstraint;
use crate::constraint::{Constraint, IndexSpec, SpecError};
use crate::namespace::Namespace;

/// A constraint that is valid by itself, and its place in the file.
struct Accepted {
    path: SettingPath,
    constraint: Constraint,
}

/// Checks `raw`. Adds the problems to `found`, and returns the valid constraints in the file's order.
pub fn check(raw: Vec<Option<RawConstraint>>, found: &mut FoundProblems<'_>) -> Vec<Arc<Constraint>> {
    let list = SettingPath::top().field("constraints");
    let mut accepted: Vec<Accepted> = Vec::new();
    for (index, raw) in raw.into_iter().enumerate() {
        let Some(one) = raw.and_then(|raw| check_one(raw, list.item(index), found)) else {
            continue;
        };
        match accepted.iter().find_map(|other| conflict_between(&one, other)) {
            Some((setting, reason)) => found.refuse(one.path.field(setting), reason),
            None => accepted.push(one),
        }
    }
    accepted.into_iter().map(|one| Arc::new(one.constraint)).collect()
}

fn check_one(raw: RawConstraint, path: SettingPath, found: &mut FoundProblems<'_>) -> Option<Accepted> {
    let namespace = match &raw.collection {
        Some(text) => Namespace::parse(text)
            .map_err(|error| found.refuse(path.field("collection"), error))
            .ok(),
        None => {
            found.refuse(
                path.field("collection"),
                "missing; which collection, as database.collection?",
            );
            None
        }
    };
    if raw.key.is_none() {
        found.refuse(
            path.field("key"),
            "missing; which fields must be unique, as createIndex writes it: { email: 1 }",
        );
    }
    let has_key = raw.key.is_some();
    let spec = IndexSpec {
        key: raw.key.unwrap_or_default(),
        name: raw.name,
        sparse: raw.sparse.unwrap_or_default(),
        partial_filter_expression: raw.partial_filter_expression,
        collation: raw.collation,
        sharding: raw.sharding.unwrap_or_default(),
        strategy: raw.strategy,
        route: raw.route.unwrap_or_default(),
        on_violation: raw.on_violation.unwrap_or_default(),
        client_entry: None,
    };
    let faults = faults_of_parts(&spec, &path);
    if !faults.is_empty() {
        for (setting, reason) in faults {
            found.refuse(setting, reason);
        }
        return None;
    }
    match Constraint::new(namespace.filter(|_| has_key)?, spec) {
        Ok(constraint) if let Some(reason) = constraint.unroutable().filter(|_| constraint.routes()) => {
            found.refuse(path.field("route"), format!("it has no effect: {reason}"));
            None
        }
        Ok(constraint) => Some(Accepted { path, constraint }),
        Err(error) => {
            found.refuse(blamed(&error, &path), error);
            None
        }
    }
}

/// The faults of each part of a specification by itself. [`Constraint::new`] stops at the first fault.
fn faults_of_parts(spec: &IndexSpec, path: &SettingPath) -> Vec<(SettingPath, String)> {
    let fault = |part: IndexSpec| Constraint::new(Namespace::new("database", "collection"), part).err();
    let plain = || IndexSpec {
        key: doc! { "field": 1 },
        ..IndexSpec::default()
    };
    let mut faults = Vec::new();
    for (field, value) in &spec.key {
        let alone = IndexSpec {
            key: doc! { field: value.clone() },
            name: spec.name.as_ref().map(|_| "name".to_owned()).filter(|_| field != "_id"),
            ..IndexSpec::default()
        };
        if let Some(error) = fault(alone) {
            let reason = match (&error, value) {
                (SpecError::Refused { .. }, Bson::String(text)) if !text.is_empty() => {
                    format!("must be 1 (ascending) or -1 (descending), not the text \"{text}\"")
                }
                _ => error.to_string(),
            };
            faults.push((path.field("key").field(field), reason));
        }
    }
    let name = IndexSpec {
        name: spec.name.clone(),
        ..plain()
    };
    if let Some(error) = fault(name.clone()).or_else(|| name.check_new_name().err()) {
        faults.push((path.field("name"), error.to_string()));
    }
    faults.extend(
        spec.collation
            .iter()
            .flat_map(|one| parts::of_collation(one, &path.field("collation"))),
    );
    let filter = spec.partial_filter_expression.iter();
    faults.extend(filter.flat_map(|one| parts::of_filter(one, &path.field("partialFilterExpression"))));
    faults
}

/// The setting that a refusal is about.
fn blamed(error: &SpecError, path: &SettingPath) -> SettingPath {
    match error {
        SpecError::Refused { .. } => path.clone(),
        SpecError::Unreadable { option } => path.field(option),
        SpecError::IndexType { .. } => path.field("key"),
        SpecError::CollationUnsupported { .. } => path.field("collation"),
        SpecError::FilterUnsupported { .. } => path.field("partialFilterExpression"),
        SpecError::ReservedNamespace(_) | SpecError::Namespace(_) => path.field("collection"),
        SpecError::Name { .. } | SpecError::NameOfId { .. } => path.field("name"),
    }
}

/// The conflict between two constraints, if there is one: the setting to blame, and the reason.
fn conflict_between(one: &Accepted, other: &Accepted) -> Option<(&'static str, String)> {
    if one.constraint.namespace() != other.constraint.namespace() {
        let proxy_collection = one.constraint.proxy_collection();
        return (proxy_collection == other.constraint.proxy_collection()).then(|| {
            let reason = format!(
                "its reservations would lie in {proxy_collection}, as those of {} do; give one of them another `name`",
                other.path
            );
            ("key", reason)
        });
    }
    if one.constraint.name() == other.constraint.name() {
        return Some((
            "name",
            format!("the same name on the same collection as {}", other.path),
        ));
    }
    // Two `Document`s are equal whatever the order of their fields. A key's order counts, so the raw patterns are
    // compared.
    let same_key = one.constraint.key_pattern() == other.constraint.key_pattern();
    fn options(spec: &IndexSpec) -> impl PartialEq {
        (spec.sparse, &spec.partial_filter_expression, &spec.collation)
    }
    (same_key && options(one.constraint.spec()) == options(other.constraint.spec())).then(|| {
        (
            "key",
            format!("the same constraint under another name as {}", other.path),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;
    use crate::constraint::Strategy;

    /// The problems of a file with these constraints, one on each line.
    fn problems(constraints: &str) -> String {
        let text = format!("upstream: mongodb://db\nconstraints:\n{constraints}");
        match Config::from_text(Path::new("f"), &text, None) {
            Ok(_) => String::new(),
            Err(problems) => problems.to_string(),
        }
    }

    #[test]
    fn two_constraints_of_a_collection_differ_in_name_and_meaning() {
        assert_eq!(
            problems(
                "  - { collection: a.b, key: { x: 1 } }\n  - { collection: a.b, key: { y: 1 }, name: x_1 }\n  - { \
                 collection: a.b, key: { x: 1 }, name: z, sharding: ranged }\n"
            ),
            "f:4:39: constraints[1].name: the same name on the same collection as constraints[0]\n\
             f:5:24: constraints[2].key: the same constraint under another name as constraints[0]"
        );
    }

    #[test]
    fn no_two_constraints_have_their_reservations_in_one_collection() {
        let same = |pair: &str, proxy: &str| {
            assert_eq!(
                problems(pair),
                format!(
                    "f:4:{}: constraints[1].key: its reservations would lie in {proxy}, as those of constraints[0] do; give one \
                     of them another `name`",
                    pair.lines().nth(1).unwrap().find("key").unwrap() + 1
                )
            );
        };
        same(
            "  - { collection: a.b, key: { c.x: 1 } }\n  - { collection: a.b.c, key: { x: 1 } }\n",
            "a.keyward.b.c.x_1",
        );
        same(
            "  - { collection: a.b, key: { x: 1 }, name: c.x_1 }\n  - { collection: a.b.c, key: { x: 1 } }\n",
            "a.keyward.b.c.x_1",
        );
        let apart = "  - { collection: a.b, key: { c.x: 1 } }\n  - { collection: a.b.c, key: { x: 1 }, name: x }\n";
        assert_eq!(problems(apart), "");
    }

    #[test]
    fn constraints_that_only_look_alike_are_taken() {
        assert_eq!(
            problems(
                "  - { collection: a.b, key: { x: 1, y: 1 } }\n  - { collection: a.c, key: { x: 1, y: 1 } }\n  - { \
                 collection: a.b, key: { y: 1, x: 1 } }\n  - { collection: a.b, key: { x: 1, y: 1 }, sparse: true, \
                 name: s }\n"
            ),
            ""
        );
    }

    #[test]
    fn a_strategy_is_read_and_an_unknown_one_refused() {
        let read = |strategy: &str| {
            let text =
                format!("upstream: mongodb://db\nconstraints:\n  - {{ collection: a.b, key: {{ x: 1 }}{strategy} }}\n");
            let config = Config::from_text(Path::new("f"), &text, None).map_err(|problems| problems.to_string());
            config.map(|config| config.constraints[0].strategy())
        };
        assert_eq!(read(""), Ok(None));
        assert_eq!(read(", strategy: compensating"), Ok(Some(Strategy::Compensating)));
        for name in ["strict", "transaction"] {
            assert_eq!(read(&format!(", strategy: {name}")), Ok(Some(Strategy::Strict)));
        }
        assert!(read(", strategy: lease").is_err_and(|error| error.contains("constraints[0].strategy: ")));
    }

    #[test]
    fn all_faults_of_one_constraint_are_found_at_once() {
        let found = problems(
            "  - { collection: users, key: { a: \"1\", b: 0, c: text, d: 1 }, name: a$b, collation: { locale: da }, \
             partialFilterExpression: { x: { $regex: a } } }\n",
        );
        for part in [
            "constraints[0].collection: ",
            "constraints[0].key.a: must be 1 (ascending) or -1 (descending), not the text \"1\"",
            "constraints[0].key.b: Values in the index key pattern cannot be 0",
            "constraints[0].key.c: an index of type 'text'",
            "constraints[0].name: ",
            "constraints[0].collation.locale: ",
            "constraints[0].partialFilterExpression.x: ",
        ] {
            assert!(found.contains(part), "{part} in {found}");
        }
        assert_eq!(found.lines().count(), 7, "{found}");
    }

    #[test]
    fn a_refusal_names_the_setting_it_is_about() {
        for (constraint, start) in [
            (
                "{ collection: users, key: { x: 1 } }",
                "f:3:7: constraints[0].collection: ",
            ),
            (
                "{ collection: admin.users, key: { x: 1 } }",
                "f:3:7: constraints[0].collection: ",
            ),
            (
                "{ collection: a.keyward.b.c, key: { x: 1 } }",
                "f:3:7: constraints[0].collection: ",
            ),
            (
                "{ collection: a.b, key: { x: text } }",
                "f:3:31: constraints[0].key.x: an index of type",
            ),
            (
                "{ collection: a.b, key: { x: 0 } }",
                "f:3:31: constraints[0].key.x: Values in the index key pattern",
            ),
            (
                "{ collection: a.b, key: { x: 1 }, name: a$b }",
                "f:3:39: constraints[0].name: ",
            ),
            (
                "{ collection: a.b, key: { _id: 1 }, name: x }",
                "f:3:41: constraints[0].name: the index on _id is always named _id_",
            ),
            (
                "{ collection: a.b, key: { x: 1 }, collation: { locale: da } }",
                "f:3:52: constraints[0].collation.locale: ",
            ),
            (
                "{ collection: a.b, key: { x.a: 1, x.b: 1 }, route: true }",
                "f:3:49: constraints[0].route: it has no effect",
            ),
            (
                "{ collection: a.b, key: { x: 1 }, sparse: true, partialFilterExpression: { x: { $exists: true } } }",
                "f:3:5: constraints[0]: cannot mix",
            ),
        ] {
            let found = problems(&format!("  - {constraint}\n"));
            assert!(found.starts_with(start), "{found} for {constraint}");
        }
    }
}
