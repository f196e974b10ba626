//! Several front ends on one worker.

use crate::{
    ClientId, ClientRequest, ExtentQuery, FrontEnd, FrontEndEvent, Mailer, Memory, Pins, Service,
    WorkerContext,
};
use forebay_types::Extent;
use forebay_volume::Reply;
use std::sync::Arc;

/// The services of two front ends. One of them may be a pair itself.
pub struct FrontEndPair<A, B> {
    /// One of them; the one that is used most.
    pub first: Arc<A>,
    /// The other one.
    pub second: Arc<B>,
}

/// A message to one of the front ends.
pub enum EitherMessage<A, B> {
    /// To the first.
    First(A),
    /// To the second.
    Second(B),
}

/// The two front ends of one worker.
pub struct PairOnWorker<A, B> {
    first: A,
    second: B,
}

impl<A: Service, B: Service> Service for FrontEndPair<A, B> {
    type FrontEnd = PairOnWorker<A::FrontEnd, B::FrontEnd>;

    fn connect(&self, mailer: Mailer<<Self::FrontEnd as FrontEnd>::Message>) {
        self.first.connect(mailer.wrapping(EitherMessage::First));
        self.second.connect(mailer.wrapping(EitherMessage::Second));
    }

    fn front_end(self: &Arc<Self>) -> Self::FrontEnd {
        let (first, second) = (self.first.front_end(), self.second.front_end());
        PairOnWorker { first, second }
    }
}

/// Calls a method of the front end that serves a client.
macro_rules! of_client {
    ($self:ident, $client:expr, $method:ident($($argument:expr),*)) => {
        match $self.second.serves($client) {
            true => $self.second.$method($($argument),*),
            false => $self.first.$method($($argument),*),
        }
    };
}

impl<A: FrontEnd, B: FrontEnd> FrontEnd for PairOnWorker<A, B> {
    type Message = EitherMessage<A::Message, B::Message>;

    fn serves(&self, client: ClientId) -> bool {
        self.second.serves(client) || self.first.serves(client)
    }

    fn takes(event: &FrontEndEvent<'_>) -> bool {
        A::takes(event) || B::takes(event)
    }

    fn event<C: WorkerContext>(&mut self, cx: &mut C, event: FrontEndEvent<'_>) {
        match A::takes(&event) {
            true => self.first.event(cx, event),
            false => self.second.event(cx, event),
        }
    }

    fn message<C: WorkerContext>(&mut self, cx: &mut C, message: Self::Message) {
        match message {
            EitherMessage::First(message) => self.first.message(cx, message),
            EitherMessage::Second(message) => self.second.message(cx, message),
        }
    }

    fn completed<C: WorkerContext>(
        &mut self,
        cx: &mut C,
        request: &ClientRequest,
        reply: Reply<'_, Memory>,
    ) -> Pins {
        of_client!(self, request.client, completed(cx, request, reply))
    }

    fn extents<C: WorkerContext>(&mut self, cx: &mut C, query: &ExtentQuery, extents: &[Extent]) {
        of_client!(self, query.client, extents(cx, query, extents));
    }

    fn memory_free<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        of_client!(self, client, memory_free(cx, client));
    }

    fn resume_input<C: WorkerContext>(&mut self, cx: &mut C) {
        self.first.resume_input(cx);
        self.second.resume_input(cx);
    }

    fn has_input(&self) -> bool {
        self.first.has_input() || self.second.has_input()
    }

    fn end_turn<C: WorkerContext>(&mut self, cx: &mut C) {
        self.first.end_turn(cx);
        self.second.end_turn(cx);
    }

    fn tick<C: WorkerContext>(&mut self, cx: &mut C) {
        self.first.tick(cx);
        self.second.tick(cx);
    }

    fn accept<C: WorkerContext>(&mut self, cx: &mut C, accepts: bool) {
        self.first.accept(cx, accepts);
        self.second.accept(cx, accepts);
    }

    fn drain_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        of_client!(self, client, drain_client(cx, client));
    }

    fn hand_over_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) -> bool {
        of_client!(self, client, hand_over_client(cx, client))
    }

    fn drop_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        of_client!(self, client, drop_client(cx, client));
    }

    fn abandon_client<C: WorkerContext>(&mut self, cx: &mut C, client: ClientId) {
        of_client!(self, client, abandon_client(cx, client));
    }
}
