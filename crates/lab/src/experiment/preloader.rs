//! The preload of a machine: the loader of the shipped warm-ups, with its reads in flight.

use super::host::{CacheHost, Token};
use super::machine::VOLUME;
use forebay_engine::PreloadKind;
use forebay_types::Granule;
use forebay_volume::{
    Conditions, Dispatcher, Host, Loader, LoaderStep, Payload, Request, RequestKind,
};

/// Preloads lines into the cache of a machine.
#[derive(Default)]
pub(super) struct Preloader {
    /// The loader, until it has ended.
    loader: Option<Loader>,
    /// The number of the loader, which its reads carry.
    number: u32,
    /// The number of the poll that is scheduled. Earlier ones are void.
    next_poll: u64,
}

impl Preloader {
    /// Begins to preload lines, instead of those of an earlier call.
    pub(super) fn begin(&mut self, granules: Vec<Granule>) {
        self.number += 1;
        self.loader = Some(Loader::new(granules));
    }

    /// Returns the number of a new poll, which the caller schedules; earlier polls become void.
    pub(super) const fn schedule(&mut self) -> u64 {
        self.next_poll += 1;
        self.next_poll
    }

    /// Starts the reads that are due. Returns when to poll again.
    pub(super) fn poll(
        &mut self,
        poll: u64,
        dispatcher: &mut Dispatcher<CacheHost>,
        host: &mut CacheHost,
        is_read: bool,
    ) -> Option<u64> {
        let loader = self.loader.as_mut().filter(|_| poll == self.next_poll)?;
        let now_ms = host.now_ms();
        let conditions = Conditions { now_ms, is_read, has_room: true, ..Conditions::default() };
        loop {
            match loader.poll(&conditions) {
                LoaderStep::Read(granule) => {
                    let kind = PreloadKind::Forecast;
                    let kind = RequestKind::Preload { lines: granule.lines, kind };
                    let request = Request { volume: VOLUME, kind, range: granule.range() };
                    let token = Token::Preload(self.number, granule);
                    dispatcher.submit(host, token, request, Payload::None);
                }
                LoaderStep::Wait(ms) => return Some(host.now_ns + ms * 1_000_000),
                LoaderStep::Ended(_) => {
                    self.loader = None;
                    return None;
                }
            }
        }
    }

    /// Records reads that have ended. Returns whether to poll now.
    pub(super) fn complete(&mut self, ended: Vec<(u32, Granule)>) -> bool {
        let Some(loader) = &mut self.loader else { return false };
        let reads_before = loader.in_flight();
        for (_, granule) in ended.into_iter().filter(|(number, _)| *number == self.number) {
            loader.complete(granule, true);
        }
        loader.in_flight() < reads_before
    }
}
