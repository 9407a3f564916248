//! Reads the specification of a `$merge` stage: its target, the fields to match by, and its modes.

use bson::spec::ElementType;

use crate::classify::{Target, plain_name};
use crate::command::shape::Form;
use crate::command::statement::StatementKind;
use crate::raw::{Doc, Element, Malformed};

/// The treatment of a document that has a match in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenMatched<'a> {
    /// The new document replaces it.
    Replace,
    /// It stays.
    KeepExisting,
    /// It gets the fields of the new document.
    Merge,
    /// The merge fails.
    Fail,
    /// This pipeline changes it.
    Pipeline(Element<'a>),
}

/// The treatment of a document without a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenNotMatched {
    /// It is inserted.
    Insert,
    /// It is dropped.
    Discard,
    /// The merge fails.
    Fail,
}

/// A `$merge` stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeStage<'a> {
    /// The fields to match by, sorted; `None` if the stage leaves the choice to the server.
    pub on: Option<Vec<&'a str>>,
    /// `let`.
    pub variables: Option<Doc<'a>>,
    /// `whenMatched`.
    pub when_matched: WhenMatched<'a>,
    /// `whenNotMatched`.
    pub when_not_matched: WhenNotMatched,
}

impl<'a> MergeStage<'a> {
    /// Reads a specification that the server accepts. `None` if Keyward doesn't know a part of it.
    pub fn read(specification: &Element<'a>) -> Result<Option<MergeStage<'a>>, Malformed> {
        let mut stage = MergeStage {
            on: None,
            variables: None,
            when_matched: WhenMatched::Merge,
            when_not_matched: WhenNotMatched::Insert,
        };
        let Some(fields) = specification.as_document()? else {
            return Ok((specification.kind == ElementType::String).then_some(stage));
        };
        for field in fields.elements() {
            let field = field?;
            let is_known = match field.name {
                b"into" => true,
                b"on" => {
                    stage.on = names(&field)?;
                    stage.on.is_some()
                }
                b"let" => {
                    stage.variables = field.as_document()?;
                    stage.variables.is_some()
                }
                b"whenMatched" => WhenMatched::of(&field).map(|mode| stage.when_matched = mode).is_some(),
                b"whenNotMatched" => WhenNotMatched::of(&field)
                    .map(|mode| stage.when_not_matched = mode)
                    .is_some(),
                _ => false,
            };
            if !is_known {
                return Ok(None);
            }
        }
        Ok(Some(stage))
    }

    /// The target of a specification in an `aggregate` on `database`; `None` if servers could read it in another way.
    pub fn target(specification: &Element<'a>, database: &'a [u8]) -> Result<Option<Target<'a>>, Malformed> {
        let into = match specification.as_document()? {
            Some(fields) => fields.get("into")?,
            None => Some(*specification),
        };
        let Some(into) = into else { return Ok(None) };
        let (database, collection) = match into.as_document()? {
            None => (Some(database), plain_name(&into)),
            Some(namespace) => {
                let named = namespace.get("db")?;
                let database = match named {
                    // A server reads an empty one as the command's own database.
                    Some(named) => plain_name(&named).filter(|name| !name.is_empty()),
                    None => Some(database),
                };
                (database, namespace.get("coll")?.as_ref().and_then(plain_name))
            }
        };
        Ok(database
            .zip(collection)
            .map(|(database, collection)| Target { database, collection }))
    }

    /// The form of the commands that carry it out.
    pub fn form(&self) -> Form {
        match self.when_matched {
            WhenMatched::Fail => Form::Insert,
            _ => Form::Changes(StatementKind::Update),
        }
    }

    /// Whether every document must have a match.
    pub fn must_match(&self) -> bool {
        self.when_not_matched == WhenNotMatched::Fail
    }

    /// The variables whose values the server must compute for each document: those of `let`, without `new`, which is the document
    /// itself.
    pub fn computed_variables(&self) -> Result<Vec<Element<'a>>, Malformed> {
        let all = self.variables.into_iter().flat_map(Doc::elements);
        let computed = all.filter(|variable| !matches!(variable, Ok(variable) if variable.name == b"new"));
        computed.collect()
    }

    /// Whether the pipeline of `whenMatched` gets the new document as `$$new`.
    pub fn passes_new(&self) -> Result<bool, Malformed> {
        Ok(match self.variables {
            Some(variables) => self.when_not_matched == WhenNotMatched::Insert || variables.get("new")?.is_some(),
            None => true,
        })
    }
}

impl<'a> WhenMatched<'a> {
    fn of(field: &Element<'a>) -> Option<WhenMatched<'a>> {
        match field.kind {
            ElementType::Array => Some(WhenMatched::Pipeline(*field)),
            _ => match field.as_str()? {
                "replace" => Some(WhenMatched::Replace),
                "keepExisting" => Some(WhenMatched::KeepExisting),
                "merge" => Some(WhenMatched::Merge),
                "fail" => Some(WhenMatched::Fail),
                _ => None,
            },
        }
    }
}

impl WhenNotMatched {
    fn of(field: &Element<'_>) -> Option<WhenNotMatched> {
        match field.as_str()? {
            "insert" => Some(WhenNotMatched::Insert),
            "discard" => Some(WhenNotMatched::Discard),
            "fail" => Some(WhenNotMatched::Fail),
            _ => None,
        }
    }
}

/// The names in a string, or in an array of strings, sorted.
fn names<'a>(on: &Element<'a>) -> Result<Option<Vec<&'a str>>, Malformed> {
    let Some(listed) = on.as_document_or_array()?.filter(|_| on.kind == ElementType::Array) else {
        return Ok(on.as_str().map(|name| vec![name]));
    };
    let mut names = Vec::new();
    for name in listed.elements() {
        let Some(name) = name?.as_str() else { return Ok(None) };
        names.push(name);
    }
    names.sort_unstable();
    Ok(Some(names))
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, bson, doc};

    use super::*;

    fn with_stage<T>(stage: Bson, test: impl FnOnce(&Element<'_>) -> T) -> T {
        let bytes = doc! { "$merge": stage }.to_vec().unwrap();
        test(&Doc::new(&bytes).unwrap().get("$merge").unwrap().unwrap())
    }

    #[test]
    fn the_target_is_in_the_database_of_the_command_unless_it_names_another() {
        let target = |stage| {
            with_stage(stage, |stage| {
                let target = MergeStage::target(stage, b"shop").unwrap();
                target.map(|target| target.display())
            })
        };
        let users = Some("shop.users".to_owned());
        assert_eq!(target("users".into()), users);
        assert_eq!(target(bson!({ "into": "users" })), users);
        assert_eq!(target(bson!({ "into": { "coll": "users" } })), users);
        let elsewhere = target(bson!({ "into": { "db": "other", "coll": "users" } }));
        assert_eq!(elsewhere, Some("other.users".to_owned()));
        for odd in [
            bson!({ "on": "a" }),
            bson!({ "into": 1 }),
            bson!({ "into": { "db": 1, "coll": "users" } }),
            bson!({ "into": { "db": "shop" } }),
            "users\0".into(),
        ] {
            assert_eq!(target(odd.clone()), None, "{odd}");
        }
    }

    #[test]
    fn modes_have_the_defaults_of_the_server() {
        with_stage("users".into(), |stage| {
            let stage = MergeStage::read(stage).unwrap().unwrap();
            assert_eq!(
                (stage.on, stage.when_matched, stage.when_not_matched),
                (None, WhenMatched::Merge, WhenNotMatched::Insert)
            );
        });
        let given = bson!({ "into": "users", "on": ["b", "a"], "whenMatched": "fail", "whenNotMatched": "discard" });
        with_stage(given, |stage| {
            let stage = MergeStage::read(stage).unwrap().unwrap();
            assert_eq!(
                (stage.on, stage.when_matched, stage.when_not_matched),
                (Some(vec!["a", "b"]), WhenMatched::Fail, WhenNotMatched::Discard)
            );
        });
    }

    /// The server of a later version may know more than Keyward.
    #[test]
    fn an_unknown_part_is_not_ignored() {
        for unknown in [
            bson!({ "into": "users", "allowMergeOnNullishValues": true }),
            bson!({ "into": "users", "whenMatched": "other" }),
            bson!({ "into": "users", "whenNotMatched": "other" }),
            bson!({ "into": "users", "on": 1 }),
            1.into(),
        ] {
            with_stage(unknown.clone(), |stage| {
                assert_eq!(MergeStage::read(stage).unwrap(), None, "{unknown}");
            });
        }
    }

    #[test]
    fn the_new_document_is_a_variable_unless_let_leaves_it_out() {
        let passes = |variables: Option<Document>, mode: &str| {
            let mut stage = doc! { "into": "users", "whenMatched": [], "whenNotMatched": mode };
            stage.extend(variables.map(|variables| doc! { "let": variables }).unwrap_or_default());
            with_stage(stage.into(), |stage| {
                let stage = MergeStage::read(stage).unwrap().unwrap();
                (stage.passes_new().unwrap(), stage.computed_variables().unwrap().len())
            })
        };
        assert_eq!(passes(None, "discard"), (true, 0));
        assert_eq!(passes(Some(doc! { "a": "$a" }), "discard"), (false, 1));
        assert_eq!(passes(Some(doc! { "a": "$a" }), "insert"), (true, 1));
        assert_eq!(passes(Some(doc! { "new": "$$ROOT", "a": 1 }), "fail"), (true, 1));
    }
}
