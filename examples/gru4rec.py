import budgetrec
import torch


class GRU4Rec(budgetrec.models.SequenceModel):
    def __init__(self, num_items):
        super().__init__()
        self.items = torch.nn.Embedding(num_items, 32)
        self.network = torch.nn.GRU(32, 32, batch_first=True)

    def forward(self, ids, mask):  # (n, L) padded on the right, to states (n, L, d)
        return self.network(self.items(ids))[0]

    def item_vectors(self, ids):
        return self.items(ids)


dataset = budgetrec.Dataset.open("dataset")
model = GRU4Rec(dataset.num_items)
plan = budgetrec.plan(dataset, memory="192MiB", model=model)
batches, objective = plan.batches(dataset), plan.objective(dataset)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
generator = torch.Generator().manual_seed(0)
for epoch in range(3):
    for batch in batches.epoch(generator):
        optimizer.zero_grad()
        hidden = model(batch.ids, batch.mask)
        loss = objective(hidden, batch.targets, model.item_vectors, mask=batch.mask, generator=generator)
        loss.backward()
        optimizer.step()
    print(epoch + 1, plan.validate(model, dataset))
