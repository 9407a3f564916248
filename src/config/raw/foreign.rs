//! Finds the parts of a YAML file that no setting can hold: tags, and names that aren't text.
//!
//! `serde` would report them in the words of its own types.

use serde_yaml::{Mapping, Value};

use super::document::plain;
use super::is_document;
use crate::config::problem::SettingPath;

/// Removes the foreign parts from the file; gives the place of each, and the reason why it is refused.
pub(super) fn set_aside_foreign(top: &mut Value) -> Vec<(SettingPath, String)> {
    let mut found = Vec::new();
    let mut unread = vec![(SettingPath::top(), top)];
    while let Some((path, value)) = unread.pop() {
        match value {
            Value::Tagged(tagged) => {
                found.push((path, format!("the YAML tag {} has no meaning here", tagged.tag)));
                *value = Value::Null;
            }
            Value::Mapping(fields) => {
                if let Some(names) = set_aside_names(fields) {
                    found.push((
                        path.clone(),
                        format!("the names of settings are text, and {names} is none"),
                    ));
                }
                let fields = fields.iter_mut().filter_map(|(name, field)| {
                    let path = path.field(name.as_str()?);
                    // A document may have names of all kinds, and its own reader refuses tags.
                    (!is_document(&path)).then_some((path, field))
                });
                unread.extend(fields);
            }
            Value::Sequence(items) => {
                let items = items.iter_mut().enumerate();
                unread.extend(items.map(|(index, item)| (path.item(index), item)));
            }
            _ => {}
        }
    }
    found
}

/// Removes the names that aren't text, with their values; gives these names.
fn set_aside_names(fields: &mut Mapping) -> Option<String> {
    let names: Vec<Value> = fields.keys().filter(|name| !name.is_string()).cloned().collect();
    for name in &names {
        fields.shift_remove(name);
    }
    let names: Vec<String> = names.iter().map(plain).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_parts_are_named_and_the_others_stay() {
        let mut value: Value = serde_yaml::from_str(
            "1: x\nlog: { 2: 3, true: 4, level: info }\nlease: !soon 3s\n\
             constraints: [{ key: { 5: !x 1 }, name: !y z }]\n",
        )
        .unwrap();
        let mut found: Vec<String> = set_aside_foreign(&mut value)
            .into_iter()
            .map(|(path, reason)| format!("{path}: {reason}"))
            .collect();
        found.sort();
        assert_eq!(
            found,
            [
                ": the names of settings are text, and 1 is none",
                "constraints[0].name: the YAML tag !y has no meaning here",
                "lease: the YAML tag !soon has no meaning here",
                "log: the names of settings are text, and 2, true is none",
            ]
        );
        let rest: Value = serde_yaml::from_str(
            "log: { level: info }\nlease: null\nconstraints: [{ key: { 5: !x 1 }, name: null }]\n",
        )
        .unwrap();
        assert_eq!(value, rest);
    }
}
