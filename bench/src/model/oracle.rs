//! The permitted contents of each sector, from the requests and answers alone.
//!
//! Time is a count of requests sent and answers received. A sector has a list of versions in the
//! order of sending; the plan never has two changes of one sector in flight, so this order is
//! unambiguous. The rules:
//!
//! - **A read** sent at `t` may return the last version answered by `t`, and all later ones; or
//!   parts of several, if no cache is between the client and a page cache (`reads_may_mix`).
//! - **After a crash** a sector may hold the last durable version and all later ones, in flight or
//!   answered. A version is durable if it was answered with FUA, or followed by an answered flush
//!   that was sent after its answer, or if the mode guarantees durability for every answer.
//! - **A trim** leaves zeroes or the old content.
//!
//! Sectors with one durable version cost four bytes; the others have a list.

use super::stamp::{self, SECTOR_BYTES, SectorContent};
use anyhow::{Result, bail};
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::ops::Range;

/// Sector numbers.
pub type Sectors = Range<u32>;

/// The effect of a request on sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorChange {
    /// They get the stamp of a generation.
    Write,
    /// They become zeroes.
    Zero,
    /// They become zeroes, or stay.
    Trim,
    /// They become anything.
    Scramble,
}

impl SectorChange {
    /// Whether the old content may remain.
    fn is_trim(self) -> bool {
        matches!(self, Self::Trim | Self::Scramble)
    }
}

/// The time of an unanswered version.
const IN_FLIGHT: u64 = u64::MAX;
/// Stands for zeroes among generations.
const ZERO: u32 = u32::MAX;
/// Stands for anything among generations.
const ANYTHING: u32 = u32::MAX - 1;
/// Requests kept to explain a failure.
const HISTORY_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct SectorVersion {
    change: SectorChange,
    generation: u32,
    ended: u64,
    durable: bool,
}

impl SectorVersion {
    /// The initial version.
    fn first(base: u32) -> Self {
        let change = match base {
            ZERO => SectorChange::Zero,
            ANYTHING => SectorChange::Scramble,
            _ => SectorChange::Write,
        };
        Self { change, generation: base, ended: 0, durable: true }
    }

    fn content(&self) -> SectorContent {
        match self.change {
            SectorChange::Write => SectorContent::Stamp(self.generation),
            SectorChange::Zero | SectorChange::Trim => SectorContent::Zero,
            SectorChange::Scramble => SectorContent::Anything,
        }
    }

    /// Itself, if there is no other version.
    fn base(&self) -> u32 {
        match self.content() {
            SectorContent::Stamp(generation) => generation,
            SectorContent::Zero => ZERO,
            SectorContent::Anything => ANYTHING,
        }
    }
}

/// An event kept to explain a failure.
#[derive(Clone, Copy, Debug)]
enum OracleEvent {
    Sent { generation: u32, what: &'static str },
    Answered,
    Refused,
    Flushed { begun: u64 },
    Crashed,
}

impl fmt::Display for OracleEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent { generation, what } => write!(f, "generation {generation} sent, {what}"),
            Self::Answered => write!(f, "answered"),
            Self::Refused => write!(f, "answered that it is not supported"),
            Self::Flushed { begun } => write!(f, "the flush that was sent at {begun} is answered"),
            Self::Crashed => write!(f, "the server is gone"),
        }
    }
}

/// The model of a volume.
pub struct VolumeOracle {
    seed: u32,
    now: u64,
    generation: u32,
    /// The only version of each sector without a list: its generation, or [`ZERO`].
    base: Vec<u32>,
    /// One more than the index of a sector's list in `lists`; zero without a list.
    slot: Vec<u32>,
    lists: Vec<Vec<SectorVersion>>,
    free: Vec<u32>,
    /// Answered changes not known to be durable, in the order of answers.
    unflushed: VecDeque<(u64, Sectors)>,
    /// Answered changes whose predecessors earlier reads may still return.
    superseding: VecDeque<(u64, Sectors)>,
    /// Send times of the reads in flight.
    reads: Vec<u64>,
    history: VecDeque<(u64, OracleEvent, Sectors)>,
    /// Whether a read beside a write may return parts of the old and of the new content of a
    /// sector, as the kernel's page cache does.
    pub reads_may_mix: bool,
    /// Sectors compared so far.
    pub compared: u64,
}

impl VolumeOracle {
    /// A volume of this many sectors with generation 0.
    pub fn new(seed: u32, sectors: u32) -> Self {
        Self {
            seed,
            now: 1,
            generation: 0,
            base: vec![0; sectors as usize],
            slot: vec![0; sectors as usize],
            lists: Vec::new(),
            free: Vec::new(),
            unflushed: VecDeque::new(),
            superseding: VecDeque::new(),
            reads: Vec::new(),
            history: VecDeque::new(),
            reads_may_mix: false,
            compared: 0,
        }
    }

    /// Marks sectors as initially zero.
    pub fn begin_with_zeroes(&mut self, sectors: Sectors) {
        sectors.for_each(|sector| self.close_list(sector, ZERO));
    }

    /// The size in sectors.
    pub fn sectors(&self) -> u32 {
        self.base.len() as u32
    }

    /// The seed of all stamps.
    pub const fn seed(&self) -> u32 {
        self.seed
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn list(&self, sector: u32) -> Option<&Vec<SectorVersion>> {
        let slot = self.slot[sector as usize];
        (slot != 0).then(|| &self.lists[slot as usize - 1])
    }

    fn list_mut(&mut self, sector: u32) -> Option<&mut Vec<SectorVersion>> {
        let slot = self.slot[sector as usize];
        (slot != 0).then(|| &mut self.lists[slot as usize - 1])
    }

    /// The list of a sector, created if missing.
    fn open_list(&mut self, sector: u32) -> &mut Vec<SectorVersion> {
        if self.slot[sector as usize] == 0 {
            let place = self.free.pop().unwrap_or_else(|| {
                self.lists.push(Vec::new());
                self.lists.len() as u32 - 1
            });
            self.lists[place as usize].push(SectorVersion::first(self.base[sector as usize]));
            self.slot[sector as usize] = place + 1;
        }
        &mut self.lists[self.slot[sector as usize] as usize - 1]
    }

    fn close_list(&mut self, sector: u32, base: u32) {
        self.base[sector as usize] = base;
        let slot = std::mem::take(&mut self.slot[sector as usize]);
        if slot != 0 {
            self.lists[slot as usize - 1].clear();
            self.free.push(slot - 1);
        }
    }

    /// Whether a change of one of these sectors is in flight.
    pub fn is_changing(&self, sectors: Sectors) -> bool {
        sectors.into_iter().any(|sector| {
            let last = self.list(sector).and_then(|list| list.last());
            last.is_some_and(|version| version.ended == IN_FLIGHT)
        })
    }

    /// Records that a change of these sectors is sent; `what` explains it. Returns its generation.
    /// None of them may be [changing](VolumeOracle::is_changing).
    pub fn begin_change(
        &mut self,
        change: SectorChange,
        sectors: Sectors,
        what: &'static str,
    ) -> u32 {
        assert!(!self.is_changing(sectors.clone()), "two changes of one sector in flight");
        self.generation += 1;
        assert!(self.generation < ANYTHING, "a run has fewer than 2^32 changes");
        self.tick();
        let generation = self.generation;
        for sector in sectors.clone() {
            let version = SectorVersion { change, generation, ended: IN_FLIGHT, durable: false };
            self.open_list(sector).push(version);
        }
        self.remember(OracleEvent::Sent { generation, what }, sectors);
        generation
    }

    /// Records the answer to the change of these sectors in flight.
    pub fn end_change(&mut self, sectors: Sectors, durable: bool) {
        let ended = self.tick();
        for sector in sectors.clone() {
            let version = self.open_list(sector).last_mut();
            let version = version.expect("a list has at least one version");
            assert!(version.ended == IN_FLIGHT, "a change is answered once");
            (version.ended, version.durable) = (ended, durable);
        }
        self.remember(OracleEvent::Answered, sectors.clone());
        if !durable {
            self.unflushed.push_back((ended, sectors.clone()));
        }
        self.superseding.push_back((ended, sectors));
        self.forget();
    }

    /// Records that the change of these sectors in flight failed without effect.
    pub fn fail_change(&mut self, sectors: Sectors) {
        self.tick();
        self.remember(OracleEvent::Refused, sectors.clone());
        let oldest = self.oldest_read();
        for sector in sectors {
            let version = self.open_list(sector).pop();
            assert!(version.is_some_and(|it| it.ended == IN_FLIGHT), "a change is answered once");
            self.prune(sector, oldest);
        }
    }

    /// Records that a flush is sent. Returns its time.
    pub fn begin_flush(&mut self) -> u64 {
        self.tick()
    }

    /// Records the answer to the flush sent at `begun`.
    pub fn end_flush(&mut self, begun: u64) {
        self.tick();
        self.remember(OracleEvent::Flushed { begun }, 0..self.sectors());
        let oldest = self.oldest_read();
        while self.unflushed.front().is_some_and(|(ended, _)| *ended <= begun) {
            let (_, sectors) = self.unflushed.pop_front().expect("it was looked at");
            for sector in sectors {
                if let Some(list) = self.list_mut(sector) {
                    list.iter_mut().filter(|it| it.ended <= begun).for_each(|it| it.durable = true);
                }
                self.prune(sector, oldest);
            }
        }
    }

    /// Records that a read or block status query is sent. Returns its time.
    pub fn begin_read(&mut self) -> u64 {
        let begun = self.tick();
        self.reads.push(begun);
        begun
    }

    /// Records that the read sent at `begun` has been answered and checked.
    pub fn end_read(&mut self, begun: u64) {
        let place = self.reads.iter().position(|&read| read == begun);
        self.reads.swap_remove(place.expect("a read ends once"));
        self.forget();
    }

    /// Drops versions that no read in flight may return.
    fn forget(&mut self) {
        let oldest = self.oldest_read();
        while self.superseding.front().is_some_and(|(ended, _)| *ended <= oldest) {
            let (_, sectors) = self.superseding.pop_front().expect("it was looked at");
            sectors.for_each(|sector| self.prune(sector, oldest));
        }
    }

    /// The send time of the oldest read in flight, or now.
    fn oldest_read(&self) -> u64 {
        self.reads.iter().copied().min().unwrap_or(self.now)
    }

    fn prune(&mut self, sector: u32, oldest: u64) {
        let Some(list) = self.list_mut(sector) else { return };
        let keep = first_readable(list, oldest).min(first_durable(list));
        list.drain(..keep);
        // A trim after a trim, or of zeroes, changes nothing.
        while list.len() > 1
            && list[1].change.is_trim()
            && list[1].durable
            && list[1].ended <= oldest
            && ((list[0].change, list[1].change) == (SectorChange::Zero, SectorChange::Trim)
                || list.get(2).is_some_and(|next| next.change == list[1].change && next.durable))
        {
            list.remove(1);
        }
        if let [only] = list[..]
            && only.durable
            && only.ended <= oldest
        {
            self.close_list(sector, only.base());
        }
    }

    /// Checks the data returned by a read sent at `begun`, from `first` on.
    pub fn check_read(&mut self, first: u32, bytes: &[u8], begun: u64) -> Result<()> {
        for (sector, found) in (first..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
            self.compared += 1;
            let Some(list) = self.list(sector) else {
                let content = SectorVersion::first(self.base[sector as usize]).content();
                if !stamp::matches(found, self.seed, sector, content) {
                    bail!(self.explain(sector, found, &[content], "read"));
                }
                continue;
            };
            let may = &list[first_readable(list, begun)..];
            if !may.iter().any(|it| stamp::matches(found, self.seed, sector, it.content())) {
                let may: Vec<SectorContent> = may.iter().map(SectorVersion::content).collect();
                if !(self.reads_may_mix && stamp::is_mixed(found, self.seed, sector, &may)) {
                    bail!(self.explain(sector, found, &may, "read"));
                }
            }
        }
        Ok(())
    }

    /// Checks the answer to a query sent at `begun` that these sectors read as zeroes.
    pub fn check_zero(&self, sectors: Sectors, begun: u64) -> Result<()> {
        for sector in sectors {
            let can = match self.list(sector) {
                None => matches!(self.base[sector as usize], ZERO | ANYTHING),
                Some(list) => list[first_readable(list, begun)..]
                    .iter()
                    .any(|version| !matches!(version.content(), SectorContent::Stamp(_))),
            };
            if !can {
                let mut text = format!("block status says that sector {sector} is zeroes");
                self.add_history(sector, &mut text);
                bail!(text);
            }
        }
        Ok(())
    }

    /// Records a crash: the I/O in flight is lost. With `answered_is_durable` every answered change
    /// must survive.
    pub fn crash(&mut self, answered_is_durable: bool) {
        self.remember(OracleEvent::Crashed, 0..self.sectors());
        self.reads.clear();
        self.unflushed.clear();
        self.superseding.clear();
        if answered_is_durable {
            let answered = |it: &&mut SectorVersion| it.ended != IN_FLIGHT;
            let versions = self.lists.iter_mut().flatten();
            versions.filter(answered).for_each(|version| version.durable = true);
        }
    }

    /// Records an orderly stop, with no request in flight: everything is durable.
    pub fn stop(&mut self) {
        self.crash(true);
    }

    /// Checks the content after a [crash](VolumeOracle::crash) or [stop](VolumeOracle::stop) from
    /// `first` on, and adopts it as the current content.
    pub fn settle(&mut self, first: u32, bytes: &[u8], from: &str) -> Result<()> {
        for (sector, found) in (first..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
            self.compared += 1;
            let base = [SectorVersion::first(self.base[sector as usize])];
            let list = self.list(sector).map_or(&base[..], Vec::as_slice);
            let may = &list[first_durable(list)..];
            let held = |it: &&SectorVersion| stamp::matches(found, self.seed, sector, it.content());
            let Some(version) = may.iter().rev().find(held) else {
                let may: Vec<SectorContent> = may.iter().map(SectorVersion::content).collect();
                bail!(self.explain(sector, found, &may, from));
            };
            let base = version.base();
            self.close_list(sector, base);
        }
        Ok(())
    }

    fn remember(&mut self, event: OracleEvent, sectors: Sectors) {
        if self.history.len() >= HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back((self.now, event, sectors));
    }

    fn explain(&self, sector: u32, found: &[u8], may: &[SectorContent], from: &str) -> String {
        let mut text = format!(
            "WRONG DATA ({from}): sector {sector} (byte {}) is {}; it may be ",
            u64::from(sector) * SECTOR_BYTES as u64,
            stamp::describe(found, self.seed),
        );
        for (index, content) in may.iter().enumerate() {
            let _ = write!(text, "{}{content}", if index == 0 { "" } else { ", or " });
        }
        self.add_history(sector, &mut text);
        text
    }

    /// Appends the last events of a sector's 4 KiB block.
    fn add_history(&self, sector: u32, text: &mut String) {
        let block = sector & !7..(sector & !7) + 8;
        let touches = |sectors: &Sectors| sectors.start < block.end && block.start < sectors.end;
        let mut last: Vec<&(u64, OracleEvent, Sectors)> = Vec::new();
        for entry in self.history.iter().rev().filter(|(_, _, sectors)| touches(sectors)) {
            // One of several flushes in a row is enough.
            let is_flush =
                |it: &(u64, OracleEvent, Sectors)| matches!(it.1, OracleEvent::Flushed { .. });
            if last.len() < 40 && !(is_flush(entry) && last.last().is_some_and(|it| is_flush(it))) {
                last.push(entry);
            }
        }
        let _ = write!(text, "\nthe last requests to its block of 4 KiB, by time:");
        for (time, event, sectors) in last.iter().rev() {
            let _ = write!(text, "\n  {time}: sectors {sectors:?}: {event}");
        }
    }
}

/// The first version that a read sent at `begun` may return. For a trim, this includes the content
/// before it.
fn first_readable(list: &[SectorVersion], begun: u64) -> usize {
    let seen = |it: &SectorVersion| it.ended <= begun && !it.change.is_trim();
    list.iter().rposition(seen).unwrap_or(0)
}

/// The first version that may exist after a crash, with the same rule for a trim.
fn first_durable(list: &[SectorVersion]) -> usize {
    list.iter().rposition(|it| it.durable && !it.change.is_trim()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(seed: u32, sector: u32, content: SectorContent) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR_BYTES];
        stamp::fill(&mut bytes, seed, sector, content);
        bytes
    }

    /// The generations, and zeroes as the last one, that a read of sector 3 may return.
    fn readable(oracle: &mut VolumeOracle, begun: u64) -> Vec<bool> {
        let contents = (0..4).map(SectorContent::Stamp).chain([SectorContent::Zero]);
        contents.map(|it| oracle.check_read(3, &sector(1, 3, it), begun).is_ok()).collect()
    }

    /// Those that it may hold after a crash.
    fn kept(oracle: &mut VolumeOracle, answered_is_durable: bool) -> Vec<bool> {
        oracle.crash(answered_is_durable);
        let list = oracle.list(3).cloned().unwrap_or_default();
        let contents = (0..4).map(SectorContent::Stamp).chain([SectorContent::Zero]);
        contents
            .map(|content| {
                let kept = oracle.settle(3, &sector(1, 3, content), "test").is_ok();
                if kept && !list.is_empty() {
                    *oracle.open_list(3) = list.clone();
                }
                kept
            })
            .collect()
    }

    fn write(oracle: &mut VolumeOracle, change: SectorChange) {
        oracle.begin_change(change, 3..4, "test");
        oracle.end_change(3..4, false);
    }

    #[test]
    fn a_read_returns_the_last_answered_write_or_a_later_one() {
        let mut oracle = VolumeOracle::new(1, 8);
        write(&mut oracle, SectorChange::Write);
        let before = oracle.begin_read();
        oracle.begin_change(SectorChange::Write, 3..4, "test");
        assert_eq!(readable(&mut oracle, before), [false, true, true, false, false]);
        oracle.end_change(3..4, false);
        let after = oracle.begin_read();
        assert_eq!(readable(&mut oracle, before), [false, true, true, false, false]);
        assert_eq!(readable(&mut oracle, after), [false, false, true, false, false]);
    }

    #[test]
    fn a_read_beside_a_write_may_mix_both_only_where_the_page_cache_may() {
        for may_mix in [false, true] {
            let mut oracle = VolumeOracle::new(1, 8);
            oracle.reads_may_mix = may_mix;
            write(&mut oracle, SectorChange::Write);
            let before = oracle.begin_read();
            write(&mut oracle, SectorChange::Write);
            let after = oracle.begin_read();
            let [mut found, mut second] = [[0; SECTOR_BYTES]; 2];
            stamp::fill(&mut found, 1, 3, SectorContent::Stamp(1));
            stamp::fill(&mut second, 1, 3, SectorContent::Stamp(2));
            found[64..].copy_from_slice(&second[64..]);
            assert_eq!(oracle.check_read(3, &found, before).is_ok(), may_mix);
            assert!(oracle.check_read(3, &found, after).is_err(), "the write was answered");
        }
    }

    #[test]
    fn a_crash_keeps_what_a_flush_that_came_later_covered() {
        let mut oracle = VolumeOracle::new(1, 8);
        write(&mut oracle, SectorChange::Write);
        let flush = oracle.begin_flush();
        write(&mut oracle, SectorChange::Write);
        oracle.end_flush(flush);
        assert_eq!(kept(&mut oracle, false), [false, true, true, false, false]);
        assert_eq!(kept(&mut oracle, true), [false, false, true, false, false]);
    }

    #[test]
    fn a_write_in_flight_may_be_there_after_a_crash_or_not() {
        let mut oracle = VolumeOracle::new(1, 8);
        oracle.begin_change(SectorChange::Write, 3..4, "test");
        assert_eq!(kept(&mut oracle, true), [true, true, false, false, false]);
    }

    #[test]
    fn a_trim_leaves_zeroes_or_what_was_there() {
        let mut oracle = VolumeOracle::new(1, 8);
        write(&mut oracle, SectorChange::Write);
        write(&mut oracle, SectorChange::Trim);
        let flush = oracle.begin_flush();
        oracle.end_flush(flush);
        write(&mut oracle, SectorChange::Trim);
        let begun = oracle.begin_read();
        assert_eq!(readable(&mut oracle, begun), [false, true, false, false, true]);
        assert!(oracle.check_zero(3..4, begun).is_ok());
        assert!(oracle.check_zero(2..4, begun).is_err());
        assert_eq!(kept(&mut oracle, false), [false, true, false, false, true]);
    }

    #[test]
    fn what_is_flushed_and_read_by_no_one_costs_no_list() {
        let mut oracle = VolumeOracle::new(1, 8);
        let read = oracle.begin_read();
        write(&mut oracle, SectorChange::Write);
        let flush = oracle.begin_flush();
        oracle.end_flush(flush);
        assert!(oracle.list(3).is_some());
        oracle.end_read(read);
        assert!(oracle.list(3).is_none());
        let begun = oracle.begin_read();
        assert_eq!(readable(&mut oracle, begun), [false, true, false, false, false]);
    }
}
