//! The manual and README.md print only commands that `forebay-lab` accepts.

#[path = "../../forebay/tests/documents/blocks.rs"]
mod blocks;
#[path = "../../forebay/tests/documents/check.rs"]
mod check;

use super::Cli;
use blocks::documents;
use check::Program;
use clap::{CommandFactory, Parser};

fn program() -> Program {
    let accepts =
        |words: &[String]| Cli::try_parse_from(words).map(drop).map_err(|error| error.to_string());
    Program { name: "forebay-lab", command: Cli::command(), accepts }
}

#[test]
fn every_command_in_the_documents_is_understood() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (page, text) in documents() {
        let (errors, commands) = program().check_document(&page, &text);
        wrong.extend(errors);
        count += commands;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 10, "only {count} commands were found");
    let (wrong, _) = program().check_document("page.md", "text\n\n    forebay-lab run x\n");
    assert!(wrong.len() == 1 && wrong[0].starts_with("page.md:3: "), "{wrong:?}");
}
