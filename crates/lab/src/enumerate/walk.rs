//! The orders of the events of one workload: all of them, or a sample if there are too many.

use super::crash::{self, Seen};
use super::rig::Rig;
use super::work::Workload;
use super::{Bug, Failure, Limits, Tally};
use crate::harness::dice::Dice;
use crate::harness::parallel::panic_text;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A choice, and the number of alternatives.
#[derive(Clone, Copy, Debug)]
struct Turn {
    choice: usize,
    choices: usize,
}

/// Follows the orders of one workload.
pub(super) struct Walk<'a> {
    workload: &'a Workload,
    limits: &'a Limits,
    bug: Option<Bug>,
    dice: Dice,
    seen: &'a mut Seen,
    pub tally: Tally,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        workload: &'a Workload,
        limits: &'a Limits,
        bug: Option<Bug>,
        seed: u64,
        seen: &'a mut Seen,
    ) -> Self {
        Self { workload, limits, bug, dice: Dice::new(seed), seen, tally: Tally::default() }
    }

    /// Follows the orders.
    ///
    /// # Errors
    /// The first order that breaks a guarantee.
    pub(super) fn run(&mut self) -> Result<(), Box<Failure>> {
        self.tally.workloads += 1;
        let mut path: Vec<Turn> = Vec::new();
        let mut fresh = 0;
        for _ in 0..self.limits.orders {
            self.follow(&mut path, |path| path.len() > fresh, |_| 0)?;
            // The next order shares the path up to the last turn with another alternative.
            let last = path.iter().rposition(|turn| turn.choice + 1 < turn.choices);
            let Some(last) = last else {
                self.tally.all_orders += 1;
                return Ok(());
            };
            path.truncate(last + 1);
            path[last].choice += 1;
            fresh = last;
        }
        self.follow_some(&path)
    }

    /// Follows random orders; all orders before `next` have been followed.
    fn follow_some(&mut self, next: &[Turn]) -> Result<(), Box<Failure>> {
        let mut seen = HashSet::new();
        for _ in 0..self.limits.random_orders {
            let mut dice = Dice::new(self.dice.below(1 << 32));
            let mut look = |path: &[Turn]| {
                let choices = path.iter().map(|turn| turn.choice);
                choices.clone().ge(next.iter().map(|turn| turn.choice))
                    && seen.insert(choices.collect::<Vec<_>>())
            };
            let choose = |choices: usize| dice.below(choices as u64) as usize;
            self.follow(&mut Vec::new(), &mut look, choose)?;
        }
        Ok(())
    }

    /// Follows one order: first `path`, then the choices of `choose`. Checks the crashes after each
    /// step that `look` accepts.
    fn follow(
        &mut self,
        path: &mut Vec<Turn>,
        look: impl FnMut(&[Turn]) -> bool,
        choose: impl FnMut(usize) -> usize,
    ) -> Result<(), Box<Failure>> {
        self.tally.orders += 1;
        let followed = catch_unwind(AssertUnwindSafe(|| self.play(path, look, choose)));
        let message = match followed {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(message)) => message,
            Err(panic) => panic_text(&*panic),
        };
        Err(Box::new(Failure {
            workload: self.workload.clone(),
            message,
            events: self.replay_events(path),
        }))
    }

    fn play(
        &mut self,
        path: &mut Vec<Turn>,
        mut look: impl FnMut(&[Turn]) -> bool,
        mut choose: impl FnMut(usize) -> usize,
    ) -> Result<(), String> {
        let mut rig = Rig::new(self.workload, self.bug);
        for at in 0.. {
            let choices = rig.choices();
            if choices == 0 {
                break;
            }
            if at == path.len() {
                path.push(Turn { choice: choose(choices), choices });
            }
            rig.step(path[at].choice);
            self.tally.steps += 1;
            rig.machine.violation.take().map_or(Ok(()), Err)?;
            if look(&path[..=at]) {
                crash::check(&rig, self.limits, &mut self.dice, self.seen, &mut self.tally)?;
            }
        }
        rig.verify();
        rig.machine.violation.take().map_or(Ok(()), Err)
    }

    /// The events of a path, for a failure.
    fn replay_events(&self, path: &[Turn]) -> Vec<String> {
        let mut rig = Rig::new(self.workload, self.bug);
        rig.machine.event_log = Some(Vec::new());
        let replayed = catch_unwind(AssertUnwindSafe(|| {
            path.iter().for_each(|turn| rig.step(turn.choice));
        }));
        let mut notes = rig.machine.event_log.take().unwrap_or_default();
        if replayed.is_err() {
            notes.push("panic".into());
        }
        notes
    }
}
