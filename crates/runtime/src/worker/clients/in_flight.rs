//! The requests in flight of a worker.
//!
//! A request stays in its place until it is answered. Only its [`Ticket`] travels through the
//! dispatcher: moving a whole request at each step would cost more than the rest of a step, because
//! the processor stalls when it reads in one piece what it has just written in several. For the
//! same reason, a place is written field by field.

use super::Submitted;
use forebay_frontend::ClientRequest;
use std::time::Instant;

/// Identifies a request in flight of a worker.
#[derive(Debug)]
pub(crate) struct Ticket(u32);

/// The requests. See the module.
#[derive(Default)]
pub(crate) struct InFlight {
    /// By ticket. Free places keep their last request.
    places: Vec<Submitted>,
    free: Vec<u32>,
}

impl InFlight {
    /// Adds a request that arrived now and has not waited, is not sequential, and is not recorded.
    pub(super) fn add(
        &mut self,
        request: &ClientRequest,
        arrived: Instant,
    ) -> (Ticket, &mut Submitted) {
        let place = self.free.pop().unwrap_or_else(|| self.grow(request, arrived));
        let submitted = &mut self.places[place as usize];
        submitted.request = *request;
        submitted.arrived = arrived;
        submitted.is_sequential = false;
        submitted.recorded = 0;
        submitted.waited_ms = 0;
        (Ticket(place), submitted)
    }

    #[cold]
    fn grow(&mut self, request: &ClientRequest, arrived: Instant) -> u32 {
        let (request, is_sequential, recorded, waited_ms) = (*request, false, 0, 0);
        self.places.push(Submitted { request, arrived, is_sequential, recorded, waited_ms });
        (self.places.len() - 1) as u32
    }

    /// A request.
    pub(super) fn get(&self, Ticket(place): &Ticket) -> &Submitted {
        debug_assert!(!self.free.contains(place), "a ticket is valid until its answer");
        &self.places[*place as usize]
    }

    /// Whether no request is in flight.
    pub(crate) const fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// All requests in flight.
    pub(super) fn all(&self) -> impl Iterator<Item = &Submitted> {
        let mut is_free = vec![false; self.places.len()];
        self.free.iter().for_each(|&place| is_free[place as usize] = true);
        self.places.iter().zip(is_free).filter_map(|(place, is_free)| (!is_free).then_some(place))
    }

    /// Removes a request that has been answered.
    pub(super) fn remove(&mut self, Ticket(place): Ticket) {
        assert!(self.free.len() < self.places.len(), "a request is answered once");
        debug_assert!(!self.free.contains(&place), "a request is answered once");
        self.free.push(place);
    }
}
