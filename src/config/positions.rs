//! Finds a setting in the file: turns the setting's path into a line and a column.
//!
//! `serde_yaml` reads the values but keeps no positions, so another parser parses the text a second time. Only
//! positions are read from this second parse.

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};

use super::problem::{FilePosition, PathStep, SettingPath};

/// The positions of one file's settings.
pub struct Positions<'a> {
    /// Absent if the file is empty, or if this parser refuses text that the other one accepts.
    root: Option<MarkedYaml<'a>>,
}

impl<'a> Positions<'a> {
    /// Parses `text`, a YAML document.
    pub fn new(text: &'a str) -> Self {
        let root = MarkedYaml::load_from_str(text)
            .ok()
            .and_then(|documents| documents.into_iter().next());
        Positions { root }
    }

    /// The position of `path`: of a field's name, or of the first character of a list's item. If `path` isn't in the
    /// file, it is the position of the innermost existing setting around it.
    pub fn find(&self, path: &SettingPath) -> Option<FilePosition> {
        let mut node = self.root.as_ref()?;
        let mut position = start(node);
        for step in path.steps() {
            let Some((named_at, value)) = child(node, step) else {
                break;
            };
            position = named_at;
            node = value;
        }
        Some(position)
    }
}

fn child<'n, 'a>(node: &'n MarkedYaml<'a>, step: &PathStep) -> Option<(FilePosition, &'n MarkedYaml<'a>)> {
    match (step, &node.data) {
        (PathStep::Item(index), YamlData::Sequence(items)) => items.get(*index).map(|item| (start(item), item)),
        (PathStep::Field(name), YamlData::Mapping(fields)) => fields
            .iter()
            .find(|(key, _)| matches!(&key.data, YamlData::Value(Scalar::String(text)) if text == name))
            .map(|(key, value)| (start(key), value)),
        _ => None,
    }
}

fn start(node: &MarkedYaml<'_>) -> FilePosition {
    FilePosition {
        line: node.span.start.line(),
        column: node.span.start.col() + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, path: &SettingPath) -> (usize, usize) {
        let position = Positions::new(text).find(path).unwrap();
        (position.line, position.column)
    }

    #[test]
    fn a_field_stands_at_its_name_and_an_item_at_its_first_character() {
        let text =
            "listen: x\nconstraints:\n  - collection: a.b\n    key: { email: 1 }\n  - key:\n      é: 1\n      b: 2\n";
        let constraints = SettingPath::top().field("constraints");
        assert_eq!(found(text, &SettingPath::top().field("listen")), (1, 1));
        assert_eq!(found(text, &constraints), (2, 1));
        assert_eq!(found(text, &constraints.item(0)), (3, 5));
        assert_eq!(found(text, &constraints.item(0).field("key")), (4, 5));
        assert_eq!(found(text, &constraints.item(0).field("key").field("email")), (4, 12));
        assert_eq!(found(text, &constraints.item(1).field("key").field("b")), (7, 7));
    }

    #[test]
    fn an_absent_setting_has_the_position_of_its_parent() {
        let text = "# comment\nconstraints:\n  - name: x\n";
        let first = SettingPath::top().field("constraints").item(0);
        assert_eq!(found(text, &first.field("key")), (3, 5));
        assert_eq!(found(text, &SettingPath::top().field("upstream")), (2, 1));
        assert_eq!(Positions::new("").find(&SettingPath::top()), None);
    }
}
