//! Extracts the code blocks of the user documentation and how to test each.
//!
//! A block is indented by four spaces or fenced. A comment on the line before it selects the test;
//! a block without a comment is run.
//!
//! | comment | the block |
//! | --- | --- |
//! | `<!-- needs: PROGRAM... -->` | is run if these programs are installed |
//! | `<!-- not run: REASON -->` | is not run; its `forebay` commands are parsed and checked |
//! | `<!-- synopsis -->` | shows command syntax; its subcommands and options must exist |
//! | `<!-- shown -->` | contains no commands |
//! | `<!-- run -->` | is run; separates it from a block right before it |
//! | `<!-- run: COMMANDS -->` | is the comment itself: commands hidden from readers |

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]
#![allow(dead_code, reason = "each of the two tests uses part of this module")]

use std::path::Path;

/// How a block is tested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Run it.
    Run,
    /// Run it if these programs are installed.
    Needs(Vec<String>),
    /// Parse its commands only.
    NotRun,
    /// Check that its subcommands and options exist.
    Synopsis,
    /// Skip it.
    Shown,
}

/// A block of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The number of its first line in the document, from 1.
    pub line: usize,
    /// The info string of the fence; empty for an indented block.
    pub language: String,
    pub kind: Kind,
    /// Its text without indentation.
    pub text: String,
}

/// The folders whose pages are tested, beside README.md.
const FOLDERS: [&str; 2] = ["docs/manual", "docs/recipes"];

/// The tested documents: their paths from the root of the repository, and their texts.
pub fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = vec![root.join("README.md")];
    for folder in FOLDERS {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        paths.extend(entries.map(|entry| entry.unwrap().path()));
    }
    paths.sort();
    let name = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    paths.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

impl Block {
    /// Its commands. Lines that end with a backslash are joined.
    pub fn commands(&self) -> Vec<String> {
        let text = self.text.replace("\\\n", " ");
        let is_command = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with('#');
        text.lines().filter(is_command).map(str::to_owned).collect()
    }
}

/// The blocks of a document, in order.
///
/// # Errors
/// Fails on an unknown comment, or one that no block follows.
pub fn blocks(document: &str) -> Result<Vec<Block>, String> {
    let lines: Vec<&str> = document.lines().collect();
    let (mut blocks, mut kind, mut at) = (Vec::new(), None, 0);
    while at < lines.len() {
        let line = lines[at];
        let is_after_blank = at == 0 || lines[at - 1].trim().is_empty();
        let is_comment = line.starts_with("<!--") && line.ends_with("-->");
        let begins = at + 1;
        if is_comment {
            match comment(line).ok_or(format!("line {begins}: unknown comment {line}"))? {
                Comment::Run(text) => {
                    let language = "sh".to_owned();
                    blocks.push(Block { line: begins, language, kind: Kind::Run, text });
                }
                Comment::Next(next) => kind = Some(next),
            }
            at += 1;
        } else if let Some(language) = line.strip_prefix("```") {
            let len = lines[at + 1..].iter().take_while(|line| !line.starts_with("```")).count();
            let text = lines[at + 1..at + 1 + len].join("\n");
            let kind = kind.take().unwrap_or(Kind::Run);
            blocks.push(Block { line: begins, language: language.to_owned(), kind, text });
            at += len + 2;
        } else if line.starts_with("    ") && (is_after_blank || kind.is_some()) {
            let is_in = |line: &&&str| line.starts_with("    ") || line.trim().is_empty();
            let len = lines[at..].iter().take_while(is_in).count();
            let text = lines[at..at + len].iter().map(|line| line.get(4..).unwrap_or(""));
            let text = text.collect::<Vec<_>>().join("\n").trim_end().to_owned();
            let kind = kind.take().unwrap_or(Kind::Run);
            blocks.push(Block { line: begins, language: String::new(), kind, text });
            at += len;
        } else {
            if !line.trim().is_empty() && kind.is_some() {
                return Err(format!("line {begins}: no block follows the comment"));
            }
            at += 1;
        }
    }
    Ok(blocks)
}

enum Comment {
    Run(String),
    Next(Kind),
}

fn comment(line: &str) -> Option<Comment> {
    let text = line.strip_prefix("<!--")?.strip_suffix("-->")?.trim();
    let (word, rest) = text.split_once(':').unwrap_or((text, ""));
    let rest = rest.trim();
    let kind = match (word, rest.is_empty()) {
        ("run", false) => return Some(Comment::Run(rest.to_owned())),
        ("needs", false) => Kind::Needs(rest.split_whitespace().map(str::to_owned).collect()),
        ("not run", false) => Kind::NotRun,
        ("run", true) => Kind::Run,
        ("synopsis", true) => Kind::Synopsis,
        ("shown", true) => Kind::Shown,
        _ => return None,
    };
    Some(Comment::Next(kind))
}
