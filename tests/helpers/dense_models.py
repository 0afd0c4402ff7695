"""What models of snapshots compute, on one rank with dense matrices: a function a kind.

N nodes, T snapshots. p: the model's parameters by name; a [T] matrices [N, N] of weights, rows are destinations; x [T]
inputs [N, I]. Returns the outputs [N, C] of all snapshots, or of the last.
"""

from __future__ import annotations

import torch


def scaled(matrix):
    """D^-1/2 matrix D^-1/2, zeros where the degree is 0."""
    degree = matrix.sum(1)
    power = torch.where(degree > 0, degree, 1.0) ** -0.5 * (degree > 0)
    return power[:, None] * matrix * power


def gcn_matrix(matrix):
    """With a loop of weight 1 where there is none."""
    return scaled(matrix + torch.diag((matrix.diagonal() == 0).to(matrix.dtype)))


def mean_matrix(matrix):
    """Weighted means of neighbors."""
    degree = matrix.sum(1, keepdim=True)
    return torch.where(degree > 0, matrix / torch.where(degree > 0, degree, 1.0), 0.0)


def output(p, rows, name="output"):
    return rows @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def normalize(p, name, rows):
    """By mean and variance of the rows, where the model has a norm of that name."""
    if f"{name}.weight" not in p:
        return rows
    norm = torch.nn.BatchNorm1d(rows.shape[1], dtype=rows.dtype)
    return torch.func.functional_call(norm, {part: p[f"{name}.{part}"] for part in ("weight", "bias")}, (rows,))


def convolve(p, prefix, a, x, layers, norm_last=False):
    """The rows of every layer, rectified."""
    found = []
    for i in range(layers):
        x = gcn_matrix(a) @ x @ p[f"{prefix}weight.{i}"] + p[f"{prefix}bias.{i}"]
        norm = f"{prefix}norm.{i}"
        x = normalize(p, norm, torch.relu(x)) if norm_last else torch.relu(normalize(p, norm, x))
        found.append(x)
    return found


def gcn(p, a, x, config):
    return [output(p, convolve(p, "layers.", *pair, config.layers)[-1]) for pair in zip(a, x, strict=True)]


def sage_layer(p, prefix, i, matrix, rows):
    own, around = rows @ p[f"{prefix}weight.{i}"], mean_matrix(matrix) @ rows @ p[f"{prefix}around.{i}"]
    return torch.relu(normalize(p, f"{prefix}norm.{i}", own + around + p[f"{prefix}bias.{i}"]))


def sage(p, a, x, config):
    found = []
    for matrix, rows in zip(a, x, strict=True):
        for i in range(config.layers):
            rows = sage_layer(p, "layers.", i, matrix, rows)
        found.append(output(p, rows))
    return found


def attend(p, prefix, matrix, rows, config):
    """Every entry of a matrix is so many edges; loops are one."""
    for i in range(config.layers):
        heads = []
        for head, values in enumerate((rows @ p[f"{prefix}weight.{i}"]).chunk(config.heads, 1)):
            source, target = values @ p[f"{prefix}source.{i}"][head], values @ p[f"{prefix}target.{i}"][head]
            score = torch.exp(torch.nn.functional.leaky_relu(source[None] + target[:, None], 0.2))
            share = score * (matrix - torch.diag(matrix.diagonal()) + torch.eye(len(matrix)))
            heads.append(share / share.sum(1, keepdim=True) @ values)
        rows = normalize(p, f"{prefix}norm.{i}", torch.cat(heads, 1) + p[f"{prefix}bias.{i}"])
        rows = torch.nn.functional.elu(rows)
    return rows


def gat(p, a, x, config):
    return [output(p, attend(p, "layers.", *pair, config)) for pair in zip(a, x, strict=True)]


def dysat(p, a, x, config):
    rows = [attend(p, "structural.", *pair, config) for pair in zip(a, x, strict=True)]
    rows = [some + p["temporal.position"][t] for t, some in enumerate(rows)]
    heads = []
    for head in torch.arange(config.hidden).chunk(config.heads):
        query = rows[-1] @ p["temporal.query"][:, head]
        score = [torch.exp((query * (some @ p["temporal.key"][:, head])).sum(1) / len(head) ** 0.5) for some in rows]
        values = [some @ p["temporal.value"][:, head] for some in rows]
        heads.append(sum(s[:, None] * v for s, v in zip(score, values, strict=True)) / sum(score)[:, None])
    found = torch.cat(heads, 1)
    return [output(p, found + torch.relu(output(p, found, "temporal.after")))]


def gru(p, prefix, given, hidden):
    width = hidden.shape[1]
    z, r = torch.sigmoid(given[:, : 2 * width] + hidden @ p[f"{prefix}gates"]).split(width, 1)
    return z * hidden + (1 - z) * torch.tanh(given[:, 2 * width :] + (r * hidden) @ p[f"{prefix}candidate"])


def roland(p, a, x, config):
    rows_of = list(x)
    for i in range(config.layers):
        hidden, edges = torch.zeros(len(x[0]), config.hidden, dtype=x[0].dtype), 0
        for t, matrix in enumerate(a):
            new = sage_layer(p, "stack.", i, matrix, rows_of[t])
            if config.update == "gru":
                given = new @ p[f"updates.{i}.weight"] + p[f"updates.{i}.bias"]
                hidden = gru(p, f"updates.{i}.cell.", given, hidden)
            elif config.update == "average":
                before, edges = edges, edges + matrix.sum(1, keepdim=True)
                share = before / edges.clamp(min=1e-300)
                hidden = share * hidden + (1 - share) * new
            else:
                both = torch.cat([hidden, new], 1)
                hidden = output(p, torch.relu(output(p, both, f"updates.{i}.layers.0")), f"updates.{i}.layers.2")
            rows_of[t] = hidden
    return [output(p, rows) for rows in rows_of]


def tgcn_hidden(p, a, x, config):
    hidden, found, width = 0, [], config.hidden
    for matrix, rows in zip(a, x, strict=True):
        if config.layers > 1:
            rows = convolve(p, "below.", matrix, rows, config.layers)[-1]
        else:
            rows = gcn_matrix(matrix) @ rows
        hidden = torch.zeros(len(rows), width, dtype=rows.dtype) if isinstance(hidden, int) else hidden
        given = rows @ p["weight"] + p["bias"]
        hidden = gru(p, "cell.", given, hidden)
        found.append(hidden)
    return found


def tgcn(p, a, x, config):
    return [output(p, torch.relu(hidden)) for hidden in tgcn_hidden(p, a, x, config)]


def a3tgcn(p, a, x, config):
    hidden = tgcn_hidden(p, a, x, config)
    score = [output(p, output(p, rows, "score.0"), "score.1") for rows in hidden]
    share = torch.exp(torch.cat(score, 1)) / torch.exp(torch.cat(score, 1)).sum(1, keepdim=True)
    return [output(p, torch.relu(sum(share[:, [t]] * rows for t, rows in enumerate(hidden))))]


def chebyshev(matrix, rows, order):
    operator, found = -scaled(matrix), [rows]
    for power in range(1, order):
        found.append(operator @ found[-1] if power == 1 else 2 * operator @ found[-1] - found[-2])
    return torch.cat(found, 1)


def convolved(matrix, rows, order):
    return gcn_matrix(matrix) @ rows


def walks(matrix, rows, order):
    both = [mean_matrix(m) for m in (matrix, matrix.T)]
    return torch.cat([rows, *[torch.matrix_power(m, i) @ rows for m in both for i in range(1, order)]], 1)


def filtered_gru(around):
    def model(p, a, x, config):
        width, rows_of = config.hidden, list(x)
        for i in range(config.layers):
            hidden = torch.zeros(len(x[0]), width, dtype=x[0].dtype)
            for t, matrix in enumerate(a):
                given = around(matrix, rows_of[t], config.order) @ p[f"weight.{i}"] + p[f"bias.{i}"]
                kept = around(matrix, hidden, config.order) @ p[f"cells.{i}.kept"]
                z, r = torch.sigmoid(given[:, : 2 * width] + kept).split(width, 1)
                kept = around(matrix, r * hidden, config.order) @ p[f"cells.{i}.candidate"]
                hidden = z * hidden + (1 - z) * torch.tanh(given[:, 2 * width :] + kept)
                rows_of[t] = hidden
        return [output(p, torch.relu(rows)) for rows in rows_of]

    return model


def graph_wavenet(p, a, x, config):
    learned = x[0][:, -len(p["adjacency.source"]) :]
    ends = learned @ p["adjacency.target"], learned @ p["adjacency.source"]
    adjacency = torch.softmax(torch.relu(ends[0] @ ends[1].T), 1)
    rows, total = {t: output(p, some, "enter") for t, some in enumerate(x)}, 0
    for i in range(config.layers):
        above = {}
        for t in sorted(set(rows) & {t + 2**i for t in rows}):
            both = torch.cat([rows[t - 2**i], rows[t]], 1) @ p[f"gates.{i}"] + p[f"gate_bias.{i}"]
            candidate, gate = both.chunk(2, 1)
            gated = torch.tanh(candidate) * torch.sigmoid(gate)
            reached = [torch.matrix_power(adjacency, power) @ gated for power in range(1, config.order)]
            terms = torch.cat([walks(a[t], gated, config.order), *reached], 1)
            above[t] = rows[t] + terms @ p[f"weight.{i}"] + p[f"bias.{i}"]
        rows, total = above, total + above[len(x) - 1] @ p[f"skip.{i}"]
    return [output(p, torch.relu(output(p, torch.relu(total), "end")))]


def gconv_lstm(p, a, x, config):
    width, rows_of = config.hidden, list(x)
    for layer in range(config.layers):
        hidden = memory = torch.zeros(len(x[0]), width, dtype=x[0].dtype)
        look = p[f"cells.{layer}.peephole"]
        for t, matrix in enumerate(a):
            given = chebyshev(matrix, rows_of[t], config.order) @ p[f"weight.{layer}"] + p[f"bias.{layer}"]
            gates = given + chebyshev(matrix, hidden, config.order) @ p[f"cells.{layer}.kept"]
            i, f, o, c = gates.split(width, 1)
            i, f = torch.sigmoid(i + look[0] * memory), torch.sigmoid(f + look[1] * memory)
            memory = f * memory + i * torch.tanh(c)
            hidden = torch.sigmoid(o + look[2] * memory) * torch.tanh(memory)
            rows_of[t] = hidden
    return [output(p, torch.relu(rows)) for rows in rows_of]


def mpnn_lstm(p, a, x, config):
    zeros = torch.zeros(len(x[0]), config.hidden, dtype=x[0].dtype)
    hidden, memory, found = [zeros, zeros], [zeros, zeros], []
    for matrix, inputs in zip(a, x, strict=True):
        rows = torch.cat(convolve(p, "stack.", matrix, inputs, config.layers, norm_last=True), 1)
        for i in range(2):
            gates = rows @ p[f"weight.{i}"] + p[f"bias.{i}"] + hidden[i] @ p[f"cells.{i}.weight"]
            take, keep, show, new = gates.split(config.hidden, 1)
            memory[i] = torch.sigmoid(keep) * memory[i] + torch.sigmoid(take) * torch.tanh(new)
            rows = hidden[i] = torch.sigmoid(show) * torch.tanh(memory[i])
        found.append(output(p, torch.cat([*hidden, inputs], 1)))
    return found


def evolvegcn(with_summary):
    def model(p, a, x, config):
        rows_of = list(x)
        for i in range(config.layers):
            weight = p[f"initial.{i}"]
            size, number = weight.shape
            for t, matrix in enumerate(a):
                given = weight
                if with_summary:
                    score = rows_of[t] @ p[f"score.{i}"].ravel() / p[f"score.{i}"].norm()
                    best = sorted(range(len(score)), key=lambda row, score=score: (-score[row].item(), row))[:number]
                    given = torch.zeros(size, number, dtype=weight.dtype)
                    for column, row in enumerate(best):
                        pick = torch.nn.functional.one_hot(torch.tensor(column), number)
                        given = given + torch.outer(rows_of[t][row] * torch.tanh(score[row]), pick.to(weight.dtype))
                u, v = p[f"evolve.{i}.given"], p[f"evolve.{i}.kept"]
                gates = u @ given + p[f"evolve.{i}.bias"]
                z = torch.sigmoid(gates[:size] + v[:size] @ weight)
                r = torch.sigmoid(gates[size : 2 * size] + v[size:] @ weight)
                candidate = torch.tanh(gates[2 * size :] + p[f"evolve.{i}.candidate"] @ (r * weight))
                weight = (1 - z) * weight + z * candidate
                rows_of[t] = torch.relu(gcn_matrix(matrix) @ rows_of[t] @ weight)
        return [output(p, rows) for rows in rows_of]

    return model


def regcn(p, a, x, config):
    """Of edges of one type: two rows of it, along edges and back."""
    unit = torch.nn.functional.normalize
    start = relation = p["relation"]
    rows = unit(output(p, x[0], "enter"))
    cell = torch.nn.GRUCell(2 * rows.shape[1], rows.shape[1], dtype=rows.dtype)
    weights = {name: p[f"cell.{name}"] for name, _ in cell.named_parameters()}
    for matrix in a:
        both = matrix + matrix.T
        ends = both.sum(1) > 0
        mean = rows[ends].mean(0) if ends.any() else torch.zeros_like(rows[0])
        inputs = torch.cat([start, mean.expand(2, -1)], 1)
        relation = unit(torch.func.functional_call(cell, weights, (inputs, relation)))
        degree, now = both.sum(1, keepdim=True), rows
        for i in range(config.layers):
            sums = both @ now + matrix.sum(1, keepdim=True) * relation[0] + matrix.sum(0)[:, None] * relation[1]
            own = torch.where(degree > 0, now @ p[f"layers.{i}.loop"], now @ p[f"layers.{i}.alone"])
            total = sums / degree.clamp(min=1) @ p[f"layers.{i}.around"] + own
            now = torch.where(total > 0, total, 11 / 48 * total)
        share = torch.sigmoid(output(p, rows, "gate"))
        rows = share * unit(now) + (1 - share) * rows
    return [output(p, rows)]


DENSE = {
    "gcn": gcn, "sage": sage, "gat": gat, "tgcn": tgcn, "tgcn_joint": filtered_gru(convolved),
    "a3tgcn": a3tgcn, "gconv_gru": filtered_gru(chebyshev), "gconv_lstm": gconv_lstm, "dcrnn": filtered_gru(walks),
    "mpnn_lstm": mpnn_lstm, "evolvegcn_o": evolvegcn(False), "evolvegcn_h": evolvegcn(True), "roland": roland,
    "regcn": regcn,
    "dysat": dysat, "graph_wavenet": graph_wavenet,
}  # fmt: skip
