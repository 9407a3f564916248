//! Finds all faults of a collation or a partial filter. [`Constraint::new`] stops at the first one, as the server does.
//!
//! If the whole is refused, each part is checked alone, in a specification that is valid otherwise. A part of a valid whole may be refused
//! alone, such as `$id` without `$ref`.

use bson::{Bson, Document, doc};

use super::super::problem::SettingPath;
use super::super::raw;
use crate::constraint::{COLLATION_FIELDS, Constraint, FILTER_OPERATORS, IndexSpec, SpecError};
use crate::namespace::Namespace;

type FaultOfPart = (SettingPath, String);

/// The faults of a collation: those of each field, or else that of the fields together.
pub(super) fn of_collation(collation: &Document, path: &SettingPath) -> Vec<FaultOfPart> {
    let fault = |collation: Document| {
        refusal(IndexSpec {
            collation: Some(collation),
            ..IndexSpec::default()
        })
    };
    if fault(collation.clone()).is_none() {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (name, value) in collation {
        let alone = match name.as_str() {
            "locale" => doc! { name: value.clone() },
            _ => doc! { "locale": "en", name: value.clone() },
        };
        if !COLLATION_FIELDS.contains(&name.as_str()) {
            faults.push((path.field(name), raw::unknown("field", name, &COLLATION_FIELDS)));
        } else if let Some(error) = fault(alone) {
            faults.push((path.field(name), error.to_string()));
        }
    }
    let together = match collation.contains_key("locale") {
        true => faults.is_empty().then(|| collation.clone()),
        false if collation.is_empty() => Some(collation.clone()),
        false => Some(doc! { "caseLevel": false }),
    };
    if let Some(error) = together.and_then(fault) {
        faults.push((path.clone(), error.to_string()));
    }
    faults
}

/// The faults of a partial filter: those of each condition, or else that of the conditions together.
pub(super) fn of_filter(filter: &Document, path: &SettingPath) -> Vec<FaultOfPart> {
    let Some(whole) = of_filter_alone(filter.clone(), path) else {
        return Vec::new();
    };
    let faults = of_conditions(filter, path);
    match faults.is_empty() {
        true => vec![whole],
        false => faults,
    }
}

fn of_conditions(filter: &Document, path: &SettingPath) -> Vec<FaultOfPart> {
    let mut faults = Vec::new();
    for (name, value) in filter {
        let path = path.field(name);
        if of_filter_alone(doc! { name: value.clone() }, &path).is_none() {
            continue;
        }
        match value {
            Bson::Array(items) if ["$and", "$or"].contains(&name.as_str()) => {
                for (index, item) in items.iter().enumerate() {
                    let item = item.as_document().into_iter();
                    faults.extend(item.flat_map(|filter| of_conditions(filter, &path.item(index))));
                }
            }
            Bson::Document(operators) if operators.len() > 1 && operators.keys().all(|name| name.starts_with('$')) => {
                for (operator, operand) in operators {
                    let alone = doc! { name: { operator: operand.clone() } };
                    faults.extend(of_filter_alone(alone, &path.field(operator)));
                }
            }
            _ => faults.extend(of_filter_alone(doc! { name: value.clone() }, &path)),
        }
    }
    faults
}

fn of_filter_alone(filter: Document, path: &SettingPath) -> Option<FaultOfPart> {
    let error = refusal(IndexSpec {
        partial_filter_expression: Some(filter),
        ..IndexSpec::default()
    })?;
    let text = error.to_string();
    // The server adds advice about such a field's name after a full stop.
    let unknown = text
        .strip_prefix("unknown operator: ")
        .or_else(|| text.strip_prefix("unknown top level operator: "));
    let reason = match unknown {
        Some(rest) => {
            let name = rest.split(['.', ' ']).next().unwrap_or_default();
            raw::unknown("operator", name, &FILTER_OPERATORS)
        }
        None => text,
    };
    Some((path.clone(), reason))
}

/// Why `part` is refused beside a key that is valid.
fn refusal(part: IndexSpec) -> Option<SpecError> {
    let spec = IndexSpec {
        key: doc! { "field": 1 },
        ..part
    };
    Constraint::new(Namespace::new("database", "collection"), spec).err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(faults: Vec<FaultOfPart>) -> Vec<String> {
        faults
            .into_iter()
            .map(|(path, reason)| format!("{path}: {reason}"))
            .collect()
    }

    #[test]
    fn all_faults_of_a_collation_are_found() {
        let of = |collation: Document| shown(of_collation(&collation, &SettingPath::top().field("c")));
        let found = of(doc! { "locale": "xx", "strenght": 3 });
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("c.locale: the collation with locale 'xx' is unknown"),
            "{found:?}"
        );
        assert_eq!(
            found[1],
            "c.strenght: unknown field `strenght`; did you mean `strength`?"
        );

        let found = of(doc! { "strength": 9, "caseLevel": 3, "foo": 1 });
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(
            found[0].starts_with("c.strength: ") && found[1].starts_with("c.caseLevel: "),
            "{found:?}"
        );
        assert!(
            found[2].starts_with("c.foo: unknown field `foo`; known here: locale, strength"),
            "{found:?}"
        );
        assert_eq!(
            found[3],
            "c: BSON field 'collation.locale' is missing but a required field"
        );

        let found = of(doc! { "locale": "en", "caseFirst": "upper", "strength": 1 });
        assert!(
            found.len() == 1 && found[0].starts_with("c: 'caseFirst' is invalid"),
            "{found:?}"
        );
        assert_eq!(of(doc! { "locale": "en", "strength": 2 }), Vec::<String>::new());
        assert_eq!(of(doc! { "locale": "simple" }), Vec::<String>::new());
        assert_eq!(of(doc! { "locale": "simple", "version": "60" }), Vec::<String>::new());
    }

    #[test]
    fn all_faults_of_a_filter_are_found() {
        let of = |filter: Document| shown(of_filter(&filter, &SettingPath::top().field("f")));
        let found = of(
            doc! { "a": { "$exist": true, "$gtt": 1 }, "$orr": [], "$or": [{ "b": { "$exist": true } }, { "c": 1 }] },
        );
        assert_eq!(
            found,
            [
                "f.a.$exist: unknown operator `$exist`; did you mean `$exists`?",
                "f.a.$gtt: unknown operator `$gtt`; did you mean `$gt`?",
                "f.$orr: unknown operator `$orr`; did you mean `$or`?",
                "f.$or[0].b: unknown operator `$exist`; did you mean `$exists`?",
            ]
        );
        assert!(of(doc! { "a": { "$regex": "x" }, "b": { "$ne": 1 } }).len() == 2);
        let deep = doc! { "$and": [{ "$or": [{ "$and": [{ "$or": [{ "a": 1, "b": 1 }, { "c": 1 }] }, { "d": 1 }] }, { "e": 1 }] }, { "g": 1 }] };
        assert_eq!(of(deep), ["f: partialFilterExpression depth may not exceed 4"]);
        let valid = doc! { "a": { "$gt": 1, "$lt": 5 }, "$and": [{ "b": { "$exists": true } }, { "c": { "$type": "string" } }] };
        assert_eq!(of(valid), Vec::<String>::new());
        let reference = doc! { "$ref": "users", "$id": 1 };
        assert_eq!(of(doc! { "a": &reference }), Vec::<String>::new());
        let found = of(doc! { "a": reference, "b": { "$exist": true } });
        assert_eq!(found, ["f.b: unknown operator `$exist`; did you mean `$exists`?"]);
    }
}
