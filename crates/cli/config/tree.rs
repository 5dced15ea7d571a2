//! YAML text as an untyped tree in which every node knows the place it was written at.
//!
//! The tree keeps what the user typed (`3e-4` stays text) because only the key decides how a value is read.
//! It does not know any key.

use super::error::{ConfigError, Problem};
use super::origin::{Origin, Source};
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, Span};
use std::path::PathBuf;
use std::sync::Arc;

/// How deep mappings and lists may be nested; no key of ours needs more than three.
const MAX_DEPTH: usize = 16;

/// A value with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlNode {
    /// Where it was written.
    pub origin: Origin,
    /// What was written.
    pub tree: Tree,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// One word or number, not yet given a type.
    Scalar {
        /// The text after YAML's escapes.
        text: String,
        /// Whether it stood in quotes, which makes it a text and never a keyword or number.
        quoted: bool,
    },
    /// A sequence.
    List(Vec<YamlNode>),
    /// A mapping, in the order of the file.
    Map(Vec<Entry>),
}

/// One `key: value` of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key as written; it may hold dots.
    pub key: String,
    /// Where the key stands.
    pub origin: Origin,
    /// Its value.
    pub node: YamlNode,
}

impl YamlNode {
    /// A plain scalar that stands nowhere in particular.
    #[must_use]
    pub fn plain(text: impl Into<String>, origin: Origin) -> Self {
        Self { origin, tree: Tree::Scalar { text: text.into(), quoted: false } }
    }

    /// Whether nothing was written after the colon; the parser gives that as `~`, YAML's word for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(&self.tree, Tree::Scalar { text, quoted: false } if text.is_empty() || text == "~")
    }

    /// What a message says was found here.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.tree {
            Tree::Scalar { .. } if self.is_empty() => "nothing".to_owned(),
            Tree::Scalar { text, quoted: true } => format!("the quoted text \"{text}\""),
            Tree::Scalar { text, .. } => format!("\"{text}\""),
            Tree::List(items) => format!("a list of {}", items.len()),
            Tree::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// Reads YAML into a tree. An empty document is an empty mapping.
///
/// *Errors*: text that is not YAML, a key given twice, anchors, aliases, several documents.
pub fn parse_yaml(source: &Arc<Source>) -> Result<YamlNode, ConfigError> {
    let mut reader = TreeReader { source, parser: Parser::new_from_str(&source.text) };
    let start = Origin::File { source: Arc::clone(source), line: 1, column: 1 };
    let mut document = None;
    while let Some((event, span)) = reader.next()? {
        match event {
            Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
            Event::DocumentStart(..) if document.is_some() => {
                return Err(Problem::new(
                    "a configuration is one YAML document, and a second one starts here",
                )
                .at(reader.origin(&span))
                .into());
            }
            Event::DocumentStart(..) => {}
            event => document = Some(reader.node(event, &span, 0)?),
        }
    }
    Ok(document
        .filter(|node| !node.is_empty())
        .unwrap_or(YamlNode { origin: start, tree: Tree::Map(Vec::new()) }))
}

/// Reads the right-hand side of a `key=value` argument: YAML flow notation where it starts like one, else a plain
/// scalar, so that a colon or a hash sign in a path needs no quotes.
///
/// *Errors*: an unclosed bracket or quote.
pub fn parse_argument(text: &str, origin: &Origin) -> Result<YamlNode, ConfigError> {
    if !text.starts_with(['[', '{', '"', '\'']) {
        return Ok(YamlNode::plain(text.trim(), origin.clone()));
    }
    let source = Arc::new(Source { path: PathBuf::new(), text: text.to_owned() });
    let mut node = parse_yaml(&source).map_err(|error| error.moved_to(origin))?;
    place(&mut node, origin);
    Ok(node)
}

fn place(node: &mut YamlNode, origin: &Origin) {
    node.origin = origin.clone();
    match &mut node.tree {
        Tree::Scalar { .. } => {}
        Tree::List(items) => items.iter_mut().for_each(|item| place(item, origin)),
        Tree::Map(entries) => entries.iter_mut().for_each(|entry| {
            entry.origin = origin.clone();
            place(&mut entry.node, origin);
        }),
    }
}

struct TreeReader<'a> {
    source: &'a Arc<Source>,
    parser: Parser<'a, serde_saphyr::granit_parser::StrInput<'a>>,
}

impl<'a> TreeReader<'a> {
    fn origin(&self, span: &Span) -> Origin {
        Origin::File {
            source: Arc::clone(self.source),
            line: span.start.line(),
            column: span.start.col() + 1,
        }
    }

    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, ConfigError> {
        loop {
            return match self.parser.next_event() {
                None => Ok(None),
                Some(Ok((Event::Comment(..), _))) => continue,
                Some(Ok(event)) => Ok(Some(event)),
                Some(Err(error)) => Err(Problem::new(format!("this is not YAML: {}", error.info()))
                    .at(Origin::File {
                        source: Arc::clone(self.source),
                        line: error.marker().line(),
                        column: error.marker().col() + 1,
                    })
                    .into()),
            };
        }
    }

    fn inner(&mut self) -> Result<(Event<'a>, Span), ConfigError> {
        Ok(self.next()?.expect("the parser closes what it opened"))
    }

    fn node(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<YamlNode, ConfigError> {
        let origin = self.origin(span);
        if depth > MAX_DEPTH {
            return Err(Problem::new(format!("nested deeper than {MAX_DEPTH} levels")).at(origin).into());
        }
        let tree = match event {
            Event::Scalar(text, style, 0, None) => {
                Tree::Scalar { text: text.into_owned(), quoted: style != ScalarStyle::Plain }
            }
            Event::SequenceStart(_, 0, None) => self.list(depth)?,
            Event::MappingStart(_, 0, None) => self.map(depth)?,
            _ => {
                let problem = Problem::new("anchors (&), aliases (*) and tags (!) are not read here");
                return Err(problem.at(origin).hint("write the value out").into());
            }
        };
        Ok(YamlNode { origin, tree })
    }

    fn list(&mut self, depth: usize) -> Result<Tree, ConfigError> {
        let mut items = Vec::new();
        loop {
            match self.inner()? {
                (Event::SequenceEnd, _) => return Ok(Tree::List(items)),
                (event, span) => items.push(self.node(event, &span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Tree, ConfigError> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (event, span) = self.inner()?;
            if event == Event::MappingEnd {
                return Ok(Tree::Map(entries));
            }
            let key = self.node(event, &span, depth + 1)?;
            let Tree::Scalar { text, .. } = key.tree else {
                return Err(Problem::new("a key is one word").at(key.origin).into());
            };
            if entries.iter().any(|entry| entry.key == text) {
                return Err(Problem::new("given twice").key(text).at(key.origin).into());
            }
            let (event, span) = self.inner()?;
            let node = self.node(event, &span, depth + 1)?;
            entries.push(Entry { key: text, origin: key.origin, node });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<YamlNode, ConfigError> {
        parse_yaml(&Arc::new(Source { path: "a.yaml".into(), text: text.to_owned() }))
    }

    #[test]
    fn a_value_knows_its_line_and_column() {
        let Tree::Map(entries) = read("seed: 7\noptimizer:\n  lr: 3e-4 # fast\n").unwrap().tree else {
            panic!()
        };
        let Tree::Map(inner) = &entries[1].node.tree else { panic!() };
        assert_eq!(inner[0].node.tree, Tree::Scalar { text: "3e-4".into(), quoted: false });
        let Origin::File { line, column, .. } = inner[0].node.origin else { panic!() };
        assert_eq!((line, column), (3, 7));
    }

    #[test]
    fn what_yaml_allows_and_a_configuration_does_not_is_an_error_with_its_place() {
        for (text, words, line) in [
            ("a: 1\nb: 2\na: 3\n", "given twice", 3),
            ("a: &x 1\nb: *x\n", "anchors", 1),
            ("a: 1\n---\nb: 2\n", "one YAML document", 2),
            ("a: [1, 2\nb: 3\n", "not YAML", 2),
            ("? [1, 2]\n: 3\n", "a key is one word", 1),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.to_string().contains(words), "{error}");
            assert!(error.to_string().contains(&format!("a.yaml:{line}:")), "{error}");
        }
        let deep = format!("a: {}{}", "[".repeat(40), "]".repeat(40));
        assert!(read(&deep).unwrap_err().to_string().contains("nested deeper"));
    }

    #[test]
    fn an_empty_file_is_an_empty_mapping() {
        for text in ["", "\n", "# nothing\n", "---\n"] {
            assert_eq!(read(text).unwrap().tree, Tree::Map(vec![]), "{text:?}");
        }
    }

    #[test]
    fn an_argument_is_a_plain_word_unless_it_starts_like_a_list_or_a_quote() {
        let origin = Origin::Argument("k=v".into());
        let scalar = |text: &str, quoted| Tree::Scalar { text: text.into(), quoted };
        assert_eq!(parse_argument("/a: b#c", &origin).unwrap().tree, scalar("/a: b#c", false));
        assert_eq!(parse_argument("\"7\"", &origin).unwrap().tree, scalar("7", true));
        let Tree::List(items) = parse_argument("[64, 32]", &origin).unwrap().tree else { panic!() };
        assert_eq!((items.len(), &items[1].tree), (2, &scalar("32", false)));
        assert!(parse_argument("[64", &origin).is_err());
    }
}
