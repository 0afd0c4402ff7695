"""The recurrent update of node memory against its composition in plain torch, and against torch's cells."""

import pytest
import torch
from layer_checks import PRECISIONS, assert_alike, assert_same_on_any_threads, gradients
from torch import nn

from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.model.updater import GruUpdater, RnnUpdater, UpdaterSizes

pytestmark = pytest.mark.serial


# (table rows, updated rows or None, state width, mail width, time width)
RECURRENT = [
    (600, 500, 100, 200, 100),
    (40, None, 5, 7, 3),
    (30, 70, 1, 0, 17),
    (9, 0, 4, 3, 2),
    (300, None, 33, 50, 1),
]
UPDATERS = pytest.mark.parametrize("updater_type", [GruUpdater, RnnUpdater])


def recurrent_case(updater_type, shape, dtype):
    total, rows, width, mail_width, time_width = shape
    torch.manual_seed(total)
    updater = updater_type(UpdaterSizes(mail_width, width, TimeEncoding(time_width, True))).to(dtype)
    for parameter in updater.parameters():
        nn.init.normal_(parameter, std=0.3)
    mailed, updated = torch.randint(0, 3_000_000, (2, total))
    state, mail = torch.randn((total, width), dtype=dtype), torch.randn((total, 1, mail_width), dtype=dtype)
    tables = [state, mail, updated, mailed[:, None]]
    index = None if rows is None else torch.randint(0, total, (rows,))
    return updater, tables, torch.rand(total) < 0.7, index


def update_plainly(updater, tables, has_mail, index):
    """Every row through the torch path, which a state that wants a gradient asks for."""
    state, *others = [*tables, has_mail.long()] if index is None else [t[index] for t in (*tables, has_mail.long())]
    return updater(state.clone().requires_grad_(), *others)


def update(updater, tables, has_mail, index):
    return updater(*tables, has_mail.long(), index)


@PRECISIONS
@UPDATERS
@pytest.mark.parametrize("shape", RECURRENT)
def test_recurrent_update_equals_composition(updater_type, shape, dtype, tolerance):
    case = recurrent_case(updater_type, shape, dtype)
    ours, theirs = update(*case), update_plainly(*case)
    assert_alike([ours], [theirs], tolerance)
    inputs = list(case[0].parameters())
    if theirs.numel():
        assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


@PRECISIONS
@UPDATERS
@pytest.mark.parametrize("shape", [RECURRENT[0], (300, None, 33, 50, 1), (30, 70, 4, 4, 17), (2000, None, 8, 12, 6)])
@pytest.mark.parametrize("share", [0, 0.4, 1])
def test_recurrent_update_where_mails_begin_with_the_state(updater_type, shape, share, dtype, tolerance):
    """share: of rows whose mail is their first, so that they have had no state, and for no time; of others some have
    one of both."""
    updater, tables, has_mail, index = first_mails(updater_type, shape, share, dtype)
    ours = update(updater, tables, has_mail, index)
    theirs = update_plainly(updater, tables, has_mail, index)
    assert_alike([ours], [theirs], tolerance)
    inputs = list(updater.parameters())
    assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


def first_mails(updater_type, shape, share, dtype):
    """The case with some first mails, and mails that begin with the state."""
    updater, (state, mail, updated, mailed), has_mail, index = recurrent_case(updater_type, shape, dtype)
    updater.state_first = True
    without_state, without_time = torch.rand((2, len(state))) < (0.1 if share < 1 else 1)
    is_first = torch.rand(len(state)) < share
    state[without_state | is_first] = 0
    updated = torch.where(without_time | is_first, mailed[:, 0], updated)
    mail[:, 0, : state.shape[1]] = state
    return updater, (state, mail, updated, mailed), has_mail, index


@PRECISIONS
@UPDATERS
def test_a_row_does_not_depend_on_the_others(updater_type, dtype, tolerance):
    """Bit for bit, whether their mails are first ones or not."""
    updater, tables, has_mail, _ = first_mails(updater_type, (500, None, 33, 50, 11), 0.3, dtype)
    whole = update(updater, tables, has_mail, None)
    for rows in (torch.arange(0, 500, 3), torch.arange(100, 231), torch.tensor([7])):
        assert torch.equal(update(updater, tables, has_mail, rows), whole[rows])


@UPDATERS
def test_recurrent_update_equals_cell(updater_type):
    """And so does torch's own cell."""
    updater, tables, _, _ = recurrent_case(updater_type, RECURRENT[4], torch.float64)
    state, mail, updated, mailed = tables
    ours = update(updater, tables, torch.ones(len(state)), None)
    theirs = updater.cell(torch.cat([mail[:, 0], updater.time(mailed[:, 0] - updated)], dim=1), state)
    assert_alike([ours], [theirs], 1e-10)


@UPDATERS
def test_recurrent_update_without_any_mail_keeps_states(updater_type):
    updater, tables, _, index = recurrent_case(updater_type, RECURRENT[0], torch.float32)
    nobody = torch.zeros(len(tables[0]), dtype=torch.int64)
    out = update(updater, tables, nobody, index)
    assert torch.equal(out, tables[0][index])
    assert all((g == 0).all() for g in gradients(out, list(updater.parameters())))


@UPDATERS
def test_recurrent_update_with_a_gradient_to_the_mail(updater_type):
    """Mail that a message function made: the torch path, differentiable in the mail of rows that have some."""
    updater, (state, mail, *times), has_mail, _ = recurrent_case(updater_type, RECURRENT[1], torch.float64)
    mail.requires_grad_()
    out = update(updater, (state, mail, *times), has_mail, None)
    assert_alike([out], [update(updater, (state, mail.detach(), *times), has_mail, None)], 1e-10)
    (gradient,) = gradients(out, [mail])
    assert torch.equal(gradient.abs().sum((1, 2)) > 0, has_mail)


@UPDATERS
def test_recurrent_update_gradcheck(updater_type):
    updater, tables, has_mail, index = recurrent_case(updater_type, (5, 7, 2, 3, 4), torch.float64)
    tables[3] = (tables[2] + torch.arange(5))[:, None]
    names, values = zip(*updater.named_parameters(), strict=True)
    call = lambda *given: torch.func.functional_call(  # noqa: E731
        updater, dict(zip(names, given, strict=True)), (*tables, has_mail.long(), index)
    )
    assert torch.autograd.gradcheck(call, values)


def test_recurrent_update_does_not_depend_on_threads():
    case = recurrent_case(GruUpdater, (2000, 1700, 40, 60, 20), torch.float32)

    def compute():
        state = update(*case)
        return [state, *gradients(state, list(case[0].parameters()))]

    assert_same_on_any_threads(compute)


def test_recurrent_update_refuses_wrong_arrays():
    updater, tables, has_mail, index = recurrent_case(GruUpdater, RECURRENT[0], torch.float32)
    with pytest.raises(ValueError, match="int64"):
        update(updater, tables, has_mail, index.int())
