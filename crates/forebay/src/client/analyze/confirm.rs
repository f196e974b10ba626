//! Asks whether to start an analysis, which takes the cache away from clients for a while.

use crate::report::with_remedy;
use anyhow::{Context, anyhow};
use std::io::{self, BufRead, IsTerminal, Write};

/// Says what an analysis does, and asks for it. Returns false if the answer is not yes.
///
/// # Errors
/// Standard input or output is no terminal, or fails.
pub(super) fn confirm(announced: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let error = anyhow!("the analysis needs a confirmation: {announced}");
        return Err(with_remedy(error, "repeat the command with --yes to start it"));
    }
    ask(announced, &mut io::stdin().lock(), &mut io::stdout())
        .context("cannot ask whether to start the analysis")
}

fn ask(announced: &str, input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<bool> {
    write!(output, "{announced}\nStart the analysis? [y/N] ")?;
    output.flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&&*answer.trim().to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_starts_an_analysis() {
        for (answer, starts) in [
            ("y\n", true),
            ("Yes\n", true),
            ("yes", true),
            ("\n", false),
            ("", false),
            ("no\n", false),
            ("yesterday\n", false),
        ] {
            let mut output = Vec::new();
            let asked = ask("the cache is off", &mut answer.as_bytes(), &mut output);
            assert_eq!(asked.unwrap(), starts, "{answer:?}");
            let output = String::from_utf8(output).unwrap();
            assert_eq!(output, "the cache is off\nStart the analysis? [y/N] ");
        }
    }
}
